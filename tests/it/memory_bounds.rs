//! Tests that what the device has lost never exceeds a limit by more than one growth step of a pool for each
//! thread in a call, however pools grow, shrink, and are scattered.

use support::{Config, Governed, Mount, Truth, c_program, wait_until};

use crate::calls::{Calls, OUT_OF_MEMORY};
use crate::driver::Dir;
use crate::memory_model::Random;

const MIB: u64 = 1 << 20;
/// Growth step in bytes of a pool of the simulated driver.
const STEP: u64 = 32 * MIB;

/// Arguments of `pool_churn.c`.
struct Churn {
    threads: u64,
    rounds: u32,
    least_kib: u32,
    most_kib: u32,
    threshold: u64,
}

impl Churn {
    /// Starts the program, which waits for a line before it allocates.
    fn start(&self, mount: &Mount) -> (Governed, i32) {
        let program = c_program("pool_churn.c", &["-pthread", "-ldl"]);
        let mut command = mount.command(program);
        command.arg(self.threads.to_string()).arg(self.rounds.to_string());
        command
            .arg(self.least_kib.to_string())
            .arg(self.most_kib.to_string());
        command.arg(self.threshold.to_string());
        let mut program = Governed::spawn(command);
        let ready = program.expect("ready ");
        let pid = ready.trim_start_matches("ready ").parse().expect("a pid");
        (program, pid)
    }
}

/// Waits until the programs are done, and returns the most bytes that the GPU was seen to have lost.
fn watch(truth: &Truth, programs: &mut [Governed]) -> u64 {
    programs.iter_mut().for_each(|program| program.say("go"));
    let mut most = 0;
    for program in programs {
        let done = loop {
            most = most.max(truth.used_by_all(0));
            if let Some(line) = program.line_now() {
                break line;
            }
        };
        let counts: Vec<u64> = done.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [granted, refused] = counts[..] else {
            panic!("{done}")
        };
        assert!(granted > 100 && refused > 0, "no limit was reached: {done}");
    }
    most
}

fn mount() -> Mount {
    Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0))
}

#[test]
fn churning_pool_exceeds_no_limit_by_more_than_its_steps() {
    let mount = mount();
    for (threads, least_kib, most_kib, threshold) in [
        (1, 1024, 3072, 0),
        (1, 1024, 3072, u64::MAX),
        (8, 100, 2048, 0),
        (8, 100, 2048, u64::MAX),
    ] {
        let churn = Churn {
            threads,
            rounds: 400,
            least_kib,
            most_kib,
            threshold,
        };
        let (program, pid) = churn.start(&mount);
        let (dir, truth) = (Dir::of(&mount, pid), mount.truth());
        dir.write("memory.limit", 300 * MIB);
        let mut programs = [program];
        let most = watch(&truth, &mut programs);
        let bound = 300 * MIB + threads * STEP;
        assert!(most <= bound, "{threads} threads, threshold {threshold}: {most}");
        assert!(
            most > 200 * MIB,
            "{threads} threads, threshold {threshold}: {most}"
        );
        wait_until("what refused attempts have added is trimmed", || {
            truth.used(pid, 0) <= 300 * MIB
        });
        wait_until("the charge is what the device has lost", || {
            dir.number("memory.current") == truth.used(pid, 0)
        });
    }
}

#[test]
fn churning_pools_of_a_group_exceed_no_limit_by_more_than_their_steps() {
    let mount = mount();
    std::fs::create_dir(mount.path().join("team")).expect("the group is made");
    mount.write("team", "memory.limit", "600M");
    let churn = Churn {
        threads: 1,
        rounds: 400,
        least_kib: 1024,
        most_kib: 3072,
        threshold: u64::MAX,
    };
    let (mut programs, pids): (Vec<_>, Vec<_>) = (0..2).map(|_| churn.start(&mount)).unzip();
    for pid in pids {
        mount.write("team", "gcgroup.procs", &pid.to_string());
    }
    let truth = mount.truth();
    let most = watch(&truth, &mut programs);
    assert!(most <= 600 * MIB + 2 * STEP, "{most}");
    wait_until("what refused attempts have added is trimmed", || {
        truth.used_by_all(0) <= 600 * MIB
    });
}

/// Starts a program whose pool keeps a gigabyte free.
fn hoarder(mount: &Mount) -> Calls {
    let mut calls = Calls::start(mount);
    calls.put("threshold", 0, 8, u64::MAX);
    calls.ok("cuDeviceGetDefaultMemPool &pool 0");
    calls.ok("cuMemPoolSetAttribute $pool 4 &threshold");
    calls.ok("cuStreamCreate &stream 1");
    calls.ok(&format!("cuMemAllocAsync &block {} $stream", 1024 * MIB));
    calls.ok("cuMemFreeAsync $block $stream");
    calls.ok("cuStreamSynchronize $stream");
    calls
}

#[test]
fn lowered_limit_takes_back_what_pools_keep_free() {
    let mount = mount();
    std::fs::create_dir(mount.path().join("team")).expect("the group is made");
    for is_group in [false, true] {
        let mut calls = hoarder(&mount);
        let pid = calls.pid();
        let truth = mount.truth();
        assert_eq!(truth.used(pid, 0), 1024 * MIB, "the pool keeps it");
        if is_group {
            mount.write("team", "memory.limit", "max");
            mount.write("team", "gcgroup.procs", &pid.to_string());
            mount.write("team", "memory.limit", "200M");
        } else {
            Dir::of(&mount, pid).write("memory.limit", 200 * MIB);
        }
        wait_until("the pool is trimmed", || truth.used(pid, 0) <= 200 * MIB);
        let answers: Vec<_> = (0..20)
            .map(|one| calls.call(&format!("cuMemAllocAsync &block{one} {} $stream", 50 * MIB)))
            .collect();
        let nr_granted = answers.iter().filter(|answer| **answer == Ok(())).count();
        assert!(
            answers
                .iter()
                .all(|answer| [Ok(()), OUT_OF_MEMORY].contains(answer)),
            "{answers:?}"
        );
        assert_eq!(nr_granted, 3, "of 64 MiB each: {answers:?}");
        assert!(truth.used(pid, 0) <= 200 * MIB);
    }
}

#[test]
fn larger_allocation_after_a_free_on_its_stream_is_granted() {
    let mount = mount();
    let mut calls = Calls::start(&mount);
    Dir::of(&mount, calls.pid()).write("memory.limit", 1024 * MIB);
    calls.ok("cuStreamCreate &stream 1");
    for stream in ["$stream", "0", "2"] {
        calls.ok(&format!("cuMemAllocAsync &one {} {stream}", 600 * MIB));
        calls.ok(&format!("cuMemsetD8Async $one 0 {} {stream}", 16 * MIB));
        calls.ok(&format!("cuMemFreeAsync $one {stream}"));
        calls.ok(&format!("cuMemAllocAsync &other {} {stream}", 700 * MIB));
        calls.ok(&format!("cuMemFreeAsync $other {stream}"));
        calls.ok("cuCtxSynchronize");
    }
}

/// Pages of 2 MiB, with the options of the daemon and of the driver.
fn paged(is_kept: bool) -> Config {
    let config = Config::default()
        .env("SIMGPU_CONTEXT_MEMORY", 0)
        .env("SIMGPU_PAGE", PAGE)
        .arg("--device-page")
        .arg(&PAGE.to_string());
    if is_kept {
        config.env("SIMGPU_QUIRKS", "kept-pages").arg("--kept-pages")
    } else {
        config
    }
}

const PAGE: u64 = 2 * MIB;

/// Blocks of sizes that are no multiples of a page.
#[test]
fn blocks_are_charged_in_whole_pages() {
    const LIMIT: u64 = 64 * MIB;
    let mount = Mount::with(paged(false));
    for bytes in [
        100 << 10,
        MIB,
        MIB + 1,
        2 * MIB,
        2 * MIB + 1,
        3 * MIB,
        5 * MIB + 1,
    ] {
        for call in [
            format!("cuMemAlloc_v2 &block {bytes}"),
            format!("cuMemAllocPitch_v2 &block &pitch 1024 {} 4", bytes.div_ceil(1024)),
        ] {
            let mut calls = Calls::start(&mount);
            let (dir, truth, pid) = (Dir::of(&mount, calls.pid()), mount.truth(), calls.pid());
            dir.write("memory.limit", LIMIT);
            let mut nr_granted = 0;
            while calls.call(&call) == Ok(()) {
                nr_granted += 1;
                assert_eq!(dir.number("memory.current"), truth.used(pid, 0), "{call}");
                assert!(truth.used(pid, 0) <= LIMIT, "{call}");
                let requested = dir.key("memory.stat", "requested").div_ceil(nr_granted);
                assert!((bytes..bytes + 1024).contains(&requested), "{call}: {requested}");
            }
            let in_page = if bytes <= PAGE / 2 { PAGE / bytes } else { 1 };
            let pages = bytes.div_ceil(PAGE);
            assert_eq!(nr_granted, LIMIT / (pages * PAGE) * in_page, "{call}");
        }
    }
}

/// Small blocks of two contexts, allocated and freed at random: at each step the charge is what the device
/// has lost, and each call has the outcome that it has on a card of that size. Where contexts keep empty
/// pages, a refused block has opened one, beyond the limit.
#[test]
fn small_blocks_are_charged_by_the_pages_that_they_share() {
    const LIMIT: u64 = 40 * MIB;
    for is_kept in [false, true] {
        let mount = Mount::with(paged(is_kept));
        let small = Mount::with(paged(is_kept).env("SIMGPU_MEMORY", LIMIT));
        let mut sides = vec![Calls::start(&mount)];
        let pid = sides[0].pid();
        let (dir, truth) = (Dir::of(&mount, pid), mount.truth());
        if !is_kept {
            sides.push(Calls::start_bare(&small));
        }
        dir.write("memory.limit", LIMIT);
        for calls in &mut sides {
            calls.ok("cuCtxGetCurrent &context0");
            calls.ok("cuCtxCreate_v2 &context1 0 0");
        }
        let mut random = Random(0x5eed);
        let mut held = Vec::new();
        let (mut nr_granted, mut nr_refused) = (0, 0);
        for step in 0..1500 {
            let (slot, is_free) = (random.below(400), random.below(1 + held.len() as u64) > 150);
            let lines = if is_free {
                let at = usize::try_from(random.below(held.len() as u64)).expect("an index");
                let (slot, _): (u64, u64) = held.swap_remove(at);
                vec![format!("cuMemFree_v2 $b{slot}")]
            } else if held.iter().any(|(known, _)| *known == slot) {
                continue;
            } else {
                let bytes = 1 + (random.below(3 * MIB) >> random.below(12));
                held.push((slot, bytes));
                vec![
                    format!("cuCtxSetCurrent $context{}", random.below(2)),
                    format!("cuMemAlloc_v2 &b{slot} {bytes}"),
                ]
            };
            let mut answers = sides.iter_mut().map(|calls| {
                let answers: Vec<_> = lines.iter().map(|line| calls.call(line)).collect();
                answers.last().copied()
            });
            let of_limited = answers.next().flatten();
            for of_card in answers {
                assert_eq!(of_limited, of_card, "step {step}: {lines:?}");
            }
            match of_limited {
                Some(Ok(())) => nr_granted += 1,
                answer => {
                    assert_eq!(answer, Some(OUT_OF_MEMORY));
                    nr_refused += 1;
                    held.pop();
                }
            }
            let lost = truth.used(pid, 0);
            assert_eq!(dir.number("memory.current"), lost, "step {step}: {lines:?}");
            let most = LIMIT + if is_kept { PAGE } else { 0 };
            assert!(lost <= most, "step {step}: {lost}");
            let requested: u64 = held.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(
                dir.key("memory.stat", "requested"),
                requested,
                "step {step}: {lines:?}"
            );
        }
        assert!(nr_granted > 100 && nr_refused > 20, "{nr_granted}, {nr_refused}");
        sides[0].ok("cuCtxDestroy_v2 $context1");
        assert_eq!(
            dir.number("memory.current"),
            truth.used(pid, 0),
            "without a context"
        );
    }
}
