//! Tests moves that fail: the bytes are complete in one place, the charges are correct, and moves that can be
//! repeated are repeated.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use simgpu::Held;
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::calls::Calls;
use crate::driver::Dir;
use crate::supervise;

const MIB: u64 = 1 << 20;

fn mount() -> Mount {
    Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0))
}

/// Starts a program with two movable blocks of 8 MiB.
#[track_caller]
fn two_blocks(mount: &Mount, environment: &[(&str, &str)]) -> Governed {
    let mut program = obeying(mount, environment);
    for _ in 0..2 {
        let answer = program.ask("alloc linear 8388608");
        assert!(answer.starts_with("allocated "), "{environment:?}: {answer}");
    }
    program
}

#[track_caller]
fn obeying(mount: &Mount, environment: &[(&str, &str)]) -> Governed {
    let mut command = mount.command(artifacts().load());
    command
        .arg("obey")
        .env("GCGROUP_SWAP", "max")
        .envs(environment.iter().copied());
    let mut program = Governed::spawn(command);
    program.expect("ready");
    program
}

/// A fault of the calls that are made from [`Fault::begin`] to [`Fault::end`]. Calls before and after do not
/// count: their number depends on chance.
pub(crate) struct Fault {
    name: String,
    file: PathBuf,
}

impl Fault {
    /// `nth` counts from 1; a `+` after it stands for all later calls.
    pub(crate) fn new(mount: &Mount, call: &str, error: u32, nth: &str) -> Self {
        let name = format!("{call}={error}@{nth}");
        let file = mount.simgpu_dir().join(&name);
        Self { name, file }
    }

    pub(crate) fn variables(&self) -> [(&str, &str); 2] {
        let file = self.file.to_str().unwrap();
        [("SIMGPU_FAULTS", &self.name), ("SIMGPU_FAULTS_WHILE", file)]
    }

    #[track_caller]
    pub(crate) fn begin(&self) {
        std::fs::write(&self.file, "").unwrap();
    }

    #[track_caller]
    pub(crate) fn end(&self) {
        std::fs::remove_file(&self.file).unwrap();
    }
}

impl Display for Fault {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}

#[track_caller]
fn all_is_freed(mount: &Mount, program: &mut Governed, fault: &impl Display) {
    let dir = Dir::of(mount, program.pid());
    assert_eq!(program.ask("verify"), "verified 2", "{fault}");
    assert_eq!(program.ask("free all"), "freed 2", "{fault}");
    assert_eq!(dir.number("memory.current"), 0, "{fault}");
    assert_eq!(dir.number("memory.swap.current"), 0, "{fault}");
    let truth = mount.truth();
    assert_eq!(truth.used(program.pid(), 0), 0, "{fault}");
    // Host memory left over from moves is kept for a moment.
    let held = || mount.truth().held(program.pid(), 0, Held::HostPhysical);
    wait_until(&format!("the host memory is released: {fault}"), || held() == 0);
    wait_until(&format!("the swap pool is empty: {fault}"), || {
        dir.key("memory.stat", "swap_pool") == 0
    });
}

/// Returns whether the host memory of a program equals the values in its files.
pub(crate) fn is_host_counted(mount: &Mount, pid: i32) -> bool {
    let dir = Dir::of(mount, pid);
    let counted = || dir.number("memory.swap.current") + dir.key("memory.stat", "swap_pool");
    counted() == mount.truth().held(pid, 0, Held::HostPhysical)
}

/// Every call that a move makes, and how often for one block out and in again, including the calls for the
/// trial of host memory and for the markers that detect the drain.
const CALLS: [(&str, usize); 16] = [
    ("cuDriverGetVersion", 1),
    ("cuMemCreate", 3),
    ("cuMemRelease", 3),
    ("cuMemAddressReserve", 3),
    ("cuMemAddressFree", 3),
    ("cuMemMap", 5),
    ("cuMemUnmap", 5),
    ("cuMemSetAccess", 5),
    ("cuStreamCreate", 2),
    ("cuMemcpyAsync", 2),
    ("cuStreamSynchronize", 2),
    ("cuStreamDestroy_v2", 2),
    ("cuCtxPushCurrent_v2", 4),
    ("cuMemGetInfo_v2", 1),
    ("cuDeviceGetAttribute", 1),
    ("cuThreadExchangeStreamCaptureMode", 2),
];

/// Runs `body` with every fault and a program with two blocks, several at a time. The fault has begun.
fn each(mount: &Mount, faults: &[Fault], body: impl Fn(&Fault, &mut Governed) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(fault) = faults.get(next.fetch_add(1, Relaxed)) {
            let mut program = two_blocks(mount, &fault.variables());
            fault.begin();
            body(fault, &mut program);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(work);
        }
    });
}

#[test]
fn any_call_failing_once_costs_one_attempt() {
    let mount = mount();
    let mut faults = Vec::new();
    for (call, count) in CALLS {
        for nth in 1..=count {
            faults.push(Fault::new(&mount, call, 999, &nth.to_string()));
        }
    }
    for (call, nth) in [
        ("cuMemCreate", "1"),
        ("cuMemCreate", "2"),
        ("cuMemAddressReserve", "1"),
    ] {
        faults.push(Fault::new(&mount, call, 2, nth));
    }
    each(&mount, &faults, |fault, program| {
        let dir = Dir::of(&mount, program.pid());
        // Exactly as much as needed on the host, so a wrong charge does not fit.
        let group = format!("of-{}", program.pid());
        std::fs::create_dir(mount.path().join(&group)).unwrap();
        mount.write(&group, "memory.swap.max", "8M");
        mount.write(&group, "gcgroup.procs", &program.pid().to_string());
        dir.write("memory.limit", 8 * MIB);
        wait_until(&format!("one block is swapped out: {fault}"), || {
            dir.number("memory.current") == 8 * MIB
        });
        assert_eq!(dir.number("memory.swap.current"), 8 * MIB, "{fault}");
        let truth = mount.truth();
        assert_eq!(truth.used(program.pid(), 0), 8 * MIB, "{fault}");
        wait_until(
            &format!("the host memory equals what is charged: {fault}"),
            || is_host_counted(&mount, program.pid()),
        );
        dir.write("memory.limit", "max");
        wait_until(&format!("the block is swapped in: {fault}"), || {
            dir.number("memory.swap.current") == 0
        });
        assert_eq!(dir.number("memory.current"), 16 * MIB, "{fault}");
        assert_eq!(truth.used(program.pid(), 0), 16 * MIB, "{fault}");
        assert!(dir.key("memory.events", "swap_fail") <= 1, "{fault}");
        dir.write("memory.limit", 8 * MIB);
        wait_until(&format!("one block is swapped out: {fault}"), || {
            dir.number("memory.current") == 8 * MIB
        });
        fault.end();
        all_is_freed(&mount, program, fault);
    });
}

/// Tests that no call of the hook's own fails a free: the driver's cuMemFree pushes no context.
#[test]
fn free_with_its_context_current_pushes_none() {
    let mount = mount();
    let fault = Fault::new(&mount, "cuCtxPushCurrent_v2", 999, "1+");
    let mut program = two_blocks(&mount, &fault.variables());
    fault.begin();
    all_is_freed(&mount, &mut program, &fault);
}

/// Tests that failing moves under a lowered limit are repeated until the limit is raised again.
#[test]
fn moves_out_that_always_fail_leave_memory_on_device() {
    let mount = mount();
    let faults = [
        ("cuMemCreate", 2, "1+"),
        ("cuMemCreate", 999, "1+"),
        ("cuMemAddressReserve", 999, "1+"),
        ("cuMemMap", 999, "1+"),
        ("cuMemSetAccess", 999, "1+"),
        ("cuMemcpyAsync", 999, "1+"),
        ("cuStreamCreate", 999, "1+"),
    ]
    .map(|(call, error, nth)| Fault::new(&mount, call, error, nth));
    each(&mount, &faults, |fault, program| {
        let dir = Dir::of(&mount, program.pid());
        dir.write("memory.limit", 8 * MIB);
        wait_until(&format!("the repeated failure is counted: {fault}"), || {
            dir.key("memory.events", "swap_fail") >= 2
        });
        assert_eq!(dir.number("memory.current"), 16 * MIB, "{fault}");
        assert_eq!(dir.number("memory.swap.current"), 0, "{fault}");
        assert_eq!(program.ask("verify"), "verified 2", "{fault}");
        dir.write("memory.limit", "max");
        all_is_freed(&mount, program, fault);
    });
}

#[test]
fn moves_in_that_always_fail_leave_memory_usable_on_host() {
    let mount = mount();
    let faults = [
        ("cuMemCreate", 2, "3+"),
        ("cuMemCreate", 999, "3+"),
        ("cuMemAddressReserve", 999, "3+"),
        ("cuMemMap", 999, "4+"),
        ("cuMemSetAccess", 999, "4+"),
        ("cuMemcpyAsync", 999, "2+"),
        ("cuStreamCreate", 999, "2+"),
    ]
    .map(|(call, error, nth)| Fault::new(&mount, call, error, nth));
    each(&mount, &faults, |fault, program| {
        let dir = Dir::of(&mount, program.pid());
        dir.write("memory.limit", 8 * MIB);
        wait_until(&format!("one block is swapped out: {fault}"), || {
            dir.number("memory.current") == 8 * MIB
        });
        dir.write("memory.limit", "max");
        // A failed move leaves the charges unchanged.
        for _ in 0..3 {
            assert_eq!(program.ask("verify"), "verified 2", "{fault}");
            assert_eq!(dir.number("memory.swap.current"), 8 * MIB, "{fault}");
        }
        all_is_freed(&mount, program, fault);
    });
}

/// Tests a driver on which unmapping fails: memory cannot be freed either, so the program gets the error and
/// keeps the memory.
#[test]
fn driver_that_cannot_unmap_keeps_memory_used_and_charged() {
    let mount = mount();
    for (nth, is_out) in [("1+", false), ("2+", false), ("3+", false), ("4+", true)] {
        let fault = &Fault::new(&mount, "cuMemUnmap", 999, nth);
        let mut program = two_blocks(&mount, &fault.variables());
        fault.begin();
        let dir = Dir::of(&mount, program.pid());
        dir.write("memory.limit", 8 * MIB);
        if is_out {
            wait_until(&format!("one block is swapped out: {fault}"), || {
                dir.number("memory.current") == 8 * MIB
            });
            dir.write("memory.limit", "max");
        }
        wait_until(&format!("the failed move is counted: {fault}"), || {
            dir.key("memory.events", "swap_fail") >= 1
        });
        assert_eq!(program.ask("verify"), "verified 2", "{fault}");
        let answer = program.ask("free all");
        assert!(answer.starts_with("error "), "{fault}: {answer}");
        let truth = mount.truth();
        let (here, there) = (dir.number("memory.current"), dir.number("memory.swap.current"));
        assert_eq!(truth.used(program.pid(), 0), here, "{fault}");
        assert_eq!(truth.held(program.pid(), 0, Held::HostPhysical), there, "{fault}");
        assert!(here + there >= 16 * MIB, "{fault}");
    }
}

#[test]
fn moves_never_request_more_host_memory_than_available() {
    let mount = mount();
    let meminfo = mount.simgpu_dir().join("meminfo");
    let available = |bytes: u64| {
        let text = format!("MemTotal: 16777216 kB\nMemAvailable: {} kB\n", bytes >> 10);
        let aside = meminfo.with_extension("new");
        std::fs::write(&aside, text).unwrap();
        std::fs::rename(aside, &meminfo).unwrap();
    };
    // A sixteenth of the host's memory always stays free.
    let reserve = 1024 * MIB;
    available(reserve + 8 * MIB - 4096);
    let mut program = obeying(&mount, &[("GCGROUP_MEMINFO", meminfo.to_str().unwrap())]);
    let dir = Dir::of(&mount, program.pid());
    for _ in 0..2 {
        let answer = program.ask("alloc linear 8388608");
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    dir.write("memory.reclaim", "max");
    wait_until("the failed move is counted", || {
        dir.key("memory.events", "swap_fail") == 1
    });
    dir.write("memory.limit", 16 * MIB);
    assert_eq!(
        program.ask("alloc linear 8388608"),
        "refused CUDA_ERROR_OUT_OF_MEMORY"
    );
    dir.write("memory.limit", 8 * MIB);
    assert_eq!(program.ask("verify"), "verified 2");
    assert_eq!(dir.number("memory.current"), 16 * MIB);
    assert_eq!(dir.number("memory.swap.current"), 0);
    available(reserve + 8 * MIB);
    wait_until("one block is swapped out", || {
        dir.number("memory.current") == 8 * MIB
    });
    dir.write("memory.swap.max", 12 * MIB);
    dir.write("memory.limit", 1);
    dir.write("memory.reclaim", "max");
    wait_until("the second failed move is counted", || {
        dir.key("memory.events", "swap_fail") == 2
    });
    assert_eq!(dir.number("memory.swap.current"), 8 * MIB);
    dir.write("memory.limit", "max");
    all_is_freed(&mount, &mut program, &"");
}

#[test]
fn process_killed_in_a_move_leaves_nothing() {
    let mount = mount();
    for _ in 0..3 {
        let program = two_blocks(&mount, &[]);
        let pid = program.pid();
        Dir::of(&mount, pid).write("memory.limit", MIB);
        drop(program);
        wait_until("the killed process is no longer governed", || !mount.governs(pid));
        assert_eq!(mount.truth().used_by_all(0), 0);
    }
}

#[test]
fn daemon_killed_in_a_move_learns_where_memory_is() {
    let mut mount = mount();
    let mut program = two_blocks(&mount, &[]);
    let pid = program.pid();
    Dir::of(&mount, pid).write("memory.limit", 8 * MIB);
    mount.kill9();
    mount.restart();
    wait_until("the process has registered again", || mount.governs(pid));
    let dir = Dir::of(&mount, pid);
    wait_until("the block over the limit is swapped out", || {
        dir.number("memory.swap.current") == 8 * MIB
    });
    wait_until("only the other block is charged to the device", || {
        dir.number("memory.current") == 8 * MIB
    });
    all_is_freed(&mount, &mut program, &"");
}

fn swapping_calls() -> Mount {
    Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("GCGROUP_SWAP", "max"),
    )
}

/// Makes the program execute a command while several threads change limits, reclaim and freeze. Repeats it
/// until a block has moved meanwhile, which depends on chance. Returns the answers.
#[track_caller]
fn with_many_hands(mount: &Mount, calls: &mut Calls, command: &str) -> Vec<String> {
    const MOST: usize = 20;
    let pid = calls.pid();
    let is_over = AtomicBool::new(false);
    let write = |file: &str, values: &[&str]| {
        let mut values = values.iter().cycle();
        while let (false, Some(value)) = (is_over.load(Relaxed), values.next()) {
            mount.write(pid, file, value);
        }
    };
    let dir = Dir::of(mount, pid);
    let has_moved = || dir.key("memory.events", "swap_out") > 0;
    let answers = std::thread::scope(|scope| {
        // Also set if the program has failed.
        let _end = supervise::End(&is_over);
        scope.spawn(|| write("memory.limit", &["4M", "max", "24M"]));
        scope.spawn(|| write("memory.reclaim", &["2M", "max"]));
        scope.spawn(|| write("compute.freeze", &["1", "0"]));
        scope.spawn(|| write("memory.swap.max", &["max", "16M"]));
        let mut answers = Vec::new();
        while answers.len() < MOST && (answers.is_empty() || !has_moved()) {
            calls.tell(command);
            answers.push(calls.line());
        }
        answers
    });
    mount.write(pid, "compute.freeze", "0");
    assert!(has_moved(), "no block moved");
    // A move may just be ending, in either direction: its charge lasts as long as it does.
    wait_until("nothing is charged", || {
        let is_zero = |file| dir.number(file) == 0;
        ["memory.current", "memory.swap.current", "memory.current"]
            .into_iter()
            .all(is_zero)
    });
    assert_eq!(dir.key("memory.stat", "linear"), 0);
    assert_eq!(dir.key("memory.stat", "pinned_unswappable"), 0);
    assert_eq!(mount.truth().used(pid, 0), 0);
    answers
}

#[test]
fn frees_during_moves_keep_charges_exact() {
    let mount = swapping_calls();
    let mut calls = Calls::start(&mount);
    for answer in with_many_hands(&mount, &mut calls, "churn 3 4 8388608 4") {
        assert!(answer.starts_with("calls "), "{answer}");
    }
}

#[test]
fn copies_during_moves_find_every_byte() {
    let mount = swapping_calls();
    let mut calls = Calls::start(&mount);
    for answer in with_many_hands(&mount, &mut calls, "carry 3 4 4194304") {
        let (carried, wrong) = answer
            .strip_prefix("carried ")
            .and_then(|rest| rest.split_once(" wrong "))
            .expect(&answer);
        assert_ne!(carried, "0");
        assert_eq!(wrong, "0", "{answer}");
    }
}
