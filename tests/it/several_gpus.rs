//! Several GPUs: whatever the program calls them and whichever is current, each is charged for its own.

use std::process::Command;

use support::{Config, Governed, Mount, c_program, wait_until};

use crate::driver::Dir;
use crate::nvml::Nvml;

const MIB: u64 = 1 << 20;
const OUT_OF_MEMORY: u64 = 2;
const NO_DEVICE: u64 = 100;
const INVALID_CONTEXT: u64 = 201;

/// `programs/devices.c`.
struct Devices(Governed);

impl Devices {
    #[track_caller]
    fn spawn(command: Command) -> Self {
        let mut program = Governed::spawn(command);
        program.expect("ready");
        Self(program)
    }

    /// Governed, and initialised.
    #[track_caller]
    fn start(mount: &Mount) -> Self {
        let mut devices = Self::spawn(mount.command(program()));
        devices.ok("init");
        devices
    }

    #[track_caller]
    fn ask(&mut self, command: &str) -> Vec<u64> {
        let answer = self.0.ask(command);
        let number = |number: &str| number.parse().unwrap_or_else(|_| panic!("{command}: {answer}"));
        answer.split(' ').map(number).collect()
    }

    /// What a call that succeeds gives.
    #[track_caller]
    fn ok(&mut self, command: &str) -> u64 {
        let answer = self.ask(command);
        assert_eq!(answer[0], 0, "{command}: {answer:?}");
        answer.get(1).copied().unwrap_or(0)
    }

    #[track_caller]
    fn refused(&mut self, command: &str) {
        assert_eq!(self.ask(command)[0], OUT_OF_MEMORY, "{command}");
    }

    /// A context of its own on each of so many devices, in their order; the last is current.
    #[track_caller]
    fn contexts(&mut self, count: u64) {
        for device in 0..count {
            assert_eq!(self.ok(&format!("create {device}")), device);
        }
    }
}

fn program() -> std::path::PathBuf {
    c_program("devices.c", &["-pthread", "-ldl"])
}

fn gpus(count: u32) -> Mount {
    Mount::with(Config::default().env("SIMGPU_DEVICES", count))
}

/// `memory.current` on each device.
#[track_caller]
fn charged(dir: &Dir<'_>, count: u32) -> Vec<u64> {
    (0..count)
        .map(|index| dir.gpu(index).number("memory.current"))
        .collect()
}

/// What a call leaves charged beyond what contexts take, for each device, in MiB.
struct Charges<'m> {
    dir: Dir<'m>,
    before: Vec<u64>,
}

impl<'m> Charges<'m> {
    #[track_caller]
    fn of(mount: &'m Mount, devices: &Devices, count: u32) -> Self {
        let dir = Dir::of(mount, devices.0.pid());
        let before = ledger(&dir, count);
        Self { dir, before }
    }

    /// MiB charged since, for each device.
    #[track_caller]
    fn since(&self) -> Vec<u64> {
        let count = u32::try_from(self.before.len()).expect("few devices");
        let now = ledger(&self.dir, count);
        let since = now
            .iter()
            .zip(&self.before)
            .map(|(now, before)| now.wrapping_sub(*before));
        since.map(|bytes| bytes / MIB).collect()
    }
}

/// What of `memory.current` was allocated, for each device: all but what contexts take.
#[track_caller]
fn ledger(dir: &Dir<'_>, count: u32) -> Vec<u64> {
    let one = |index| {
        let gpu = dir.gpu(index);
        ["linear", "managed", "pool", "vmm", "array"]
            .into_iter()
            .map(|kind| gpu.key("memory.stat", kind))
            .sum()
    };
    (0..count).map(one).collect()
}

/// The UUIDs in the daemon's order.
fn uuids(mount: &Mount) -> Vec<String> {
    let devices = mount.read("", "devices");
    let uuid = |line: &str| line.split(' ').nth(1).expect("a UUID").to_owned();
    devices.lines().map(uuid).collect()
}

#[test]
fn whatever_is_visible_and_in_whatever_order_each_device_is_its_own() {
    let mount = gpus(4);
    let uuids = uuids(&mount);
    assert_eq!(uuids.len(), 4);
    let forms: [(String, &[u32]); 11] = [
        ("0,1,2,3".into(), &[0, 1, 2, 3]),
        ("3".into(), &[3]),
        ("2,0".into(), &[2, 0]),
        (" 3 , 1".into(), &[3, 1]),
        (uuids[1].clone(), &[1]),
        (format!("{},{}", uuids[3], uuids[0]), &[3, 0]),
        (format!("1,{}", uuids[2]), &[1, 2]),
        ("2,9,1".into(), &[2]),
        ("1,-1,0".into(), &[1]),
        ("3,MIG-00112233-4455-6677-8899-aabbccddeeff".into(), &[3]),
        ("0,nonsense,1".into(), &[0]),
    ];
    for (form, want) in forms {
        for order in ["PCI_BUS_ID", "FASTEST_FIRST"] {
            let mut command = mount.command(program());
            command
                .env("CUDA_VISIBLE_DEVICES", &form)
                .env("CUDA_DEVICE_ORDER", order);
            let mut devices = Devices::spawn(command);
            devices.ok("init");
            assert_eq!(devices.ok("count"), want.len() as u64, "{form}");
            let dir = Dir::of(&mount, devices.0.pid());
            let mut allocated = [0; 4];
            for (ordinal, real) in (0_u64..).zip(want) {
                // One by one on each, so that what goes astray shows.
                let bytes = (ordinal + 1) * MIB;
                devices.ok(&format!("create {ordinal}"));
                dir.gpu(*real).write("memory.limit", 64 * MIB);
                assert_eq!(devices.ok(&format!("total {ordinal}")), 64 * MIB, "{form}");
                devices.refused(&format!("alloc {}", 64 * MIB + 1));
                devices.ok(&format!("alloc {bytes}"));
                allocated[*real as usize] = bytes;
            }
            assert_eq!(ledger(&dir, 4), allocated, "{form}");
            let whole: u64 = charged(&dir, 4).iter().sum();
            assert_eq!(dir.number("memory.current"), whole, "{form}");
        }
    }
}

#[test]
fn the_daemon_shows_every_device_whatever_is_visible_to_it() {
    let all = uuids(&gpus(3));
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 3)
            .env("CUDA_VISIBLE_DEVICES", "2,1"),
    );
    assert_eq!(uuids(&mount), all);
    let mut devices = Devices::start(&mount);
    devices.contexts(2);
    devices.ok(&format!("alloc {MIB}"));
    assert_eq!(ledger(&Dir::of(&mount, devices.0.pid()), 3), [0, MIB, 0]);
}

#[test]
fn a_process_to_which_no_device_is_visible_is_not_governed_and_is_told_so_by_the_driver() {
    let mount = gpus(2);
    for form in [
        "",
        "-1",
        "7",
        "NoDevFiles",
        "0,0",
        "MIG-00112233-4455-6677-8899-aabbccddeeff",
    ] {
        let mut command = mount.command(program());
        command.env("CUDA_VISIBLE_DEVICES", form);
        let mut devices = Devices::spawn(command);
        assert_eq!(devices.ask("init"), [NO_DEVICE], "{form:?}");
        assert!(!mount.governs(devices.0.pid()), "{form:?}");
    }
}

#[test]
fn memory_is_charged_where_the_current_context_is() {
    let mount = gpus(3);
    let mut devices = Devices::start(&mount);
    devices.contexts(3);
    let charges = Charges::of(&mount, &devices, 3);
    devices.ok(&format!("alloc {}", 4 * MIB));
    devices.ok("current 0");
    let first = devices.ok(&format!("alloc {MIB}"));
    devices.ok("push 1");
    let second = devices.ok(&format!("array {}", 2 * MIB));
    assert_eq!(charges.since(), [1, 2, 4]);
    devices.ok("pop");
    devices.ok(&format!("managed {}", 8 * MIB));
    assert_eq!(charges.since(), [9, 2, 4], "back on the first");
    for _ in 0..3 {
        devices.ok("pop");
    }
    assert_eq!(devices.ask(&format!("alloc {MIB}"))[0], INVALID_CONTEXT);
    assert_eq!(charges.since(), [9, 2, 4], "no context, no memory");

    // Whoever frees, it is given back where it was charged.
    devices.ok("current 2");
    devices.ok(&format!("free {first}"));
    assert_eq!(charges.since(), [8, 2, 4]);
    devices.ok(&format!("thread free {second}"));
    assert_eq!(charges.since(), [8, 0, 4]);
    devices.ok("destroy 0");
    assert_eq!(charges.since(), [0, 0, 4], "what a context owned goes with it");
    devices.ok("retain 1");
    devices.ok("current 3");
    devices.ok(&format!("alloc {MIB}"));
    devices.ok("current 2");
    assert_eq!(charges.since(), [0, 1, 4]);
    devices.ok("reset 1");
    assert_eq!(charges.since(), [0, 0, 4]);
}

#[test]
fn when_a_daemon_comes_that_knows_more_devices_each_is_charged_to_its_own() {
    let mut mount = Mount::new();
    let more = tempfile::tempdir().expect("a directory");
    let mut command = mount.command(program());
    command.env("SIMGPU_DIR", more.path()).env("SIMGPU_DEVICES", "3");
    let mut devices = Devices::spawn(command);
    devices.ok("init");
    devices.contexts(3);
    devices.ok(&format!("alloc {}", 4 * MIB));
    devices.ok("current 1");
    devices.ok(&format!("alloc {}", 2 * MIB));
    let pid = devices.0.pid();
    assert_eq!(charged(&Dir::of(&mount, pid), 1), [0]);
    assert_eq!(Dir::of(&mount, pid).number("memory.current"), 6 * MIB);

    mount.stop();
    std::fs::remove_dir_all(mount.simgpu_dir()).expect("the machine goes");
    std::fs::create_dir(mount.simgpu_dir()).expect("and another comes");
    // The first to attach makes the machine.
    let mut command = mount.bare_command(program());
    command.env("SIMGPU_DEVICES", "3");
    let mut first = Devices::spawn(command);
    first.ok("init");
    mount.restart();
    wait_until("it is governed again", || mount.governs(pid));
    let dir = Dir::of(&mount, pid);
    wait_until("its charges have moved", || {
        charged(&dir, 3) == [0, 2 * MIB, 4 * MIB]
    });
    assert_eq!(dir.number("memory.current"), 6 * MIB);
    dir.gpu(1).write("memory.limit", 3 * MIB);
    devices.refused(&format!("alloc {}", MIB + 1));
    devices.ok(&format!("alloc {MIB}"));
}

#[test]
fn a_second_thread_is_charged_for_its_own_device() {
    let mount = gpus(2);
    let mut devices = Devices::start(&mount);
    devices.contexts(2);
    let charges = Charges::of(&mount, &devices, 2);
    devices.ask(&format!("thread alloc {MIB}"));
    assert_eq!(charges.since(), [0, 0], "a new thread has no context");
    devices.ok("current 0");
    devices.ok(&format!("alloc {MIB}"));
    assert_eq!(charges.since(), [1, 0]);
    devices.ok("thread push 1");
    devices.ok(&format!("alloc {MIB}"));
    assert_eq!(
        charges.since(),
        [2, 0],
        "another thread's context is not this one's"
    );
}

#[test]
fn physical_memory_and_pools_are_charged_to_the_device_that_they_name() {
    let mount = gpus(3);
    let mut devices = Devices::start(&mount);
    let charges = Charges::of(&mount, &devices, 3);
    let physical = devices.ok(&format!("vmm 2 {}", 4 * MIB));
    assert_eq!(charges.since(), [0, 0, 4], "there is no context at all");
    devices.contexts(2);
    devices.ok("current 0");
    devices.ok(&format!("vmm 1 {}", 2 * MIB));
    assert_eq!(charges.since(), [0, 2, 4]);
    devices.ok(&format!("free {physical}"));

    let pool = devices.ok("pool 1");
    let reserved = |devices: &mut Devices| devices.ok(&format!("attribute {pool} 5")) / MIB;
    let taken = devices.ask(&format!("from {pool} {} null", 2 * MIB));
    assert_eq!(charges.since(), [0, 2 + reserved(&mut devices), 0], "{taken:?}");
    Dir::of(&mount, devices.0.pid())
        .gpu(1)
        .write("memory.limit", 4 * MIB);
    devices.refused(&format!("from {pool} {} null", 64 * MIB));
    devices.refused(&format!("vmm 1 {}", 64 * MIB));
    devices.ok(&format!("alloc {}", 64 * MIB));
}

#[test]
fn an_allocation_in_stream_order_is_of_the_streams_device() {
    let mount = gpus(2);
    let mut devices = Devices::start(&mount);
    devices.contexts(2);
    let charges = Charges::of(&mount, &devices, 2);
    let stream = devices.ok("stream 0");
    devices.ok("current 0");
    let memory = devices.ok(&format!("async {} {stream}", 2 * MIB));
    let [first, second] = charges.since()[..] else {
        panic!()
    };
    assert_eq!(first, 0);
    assert!(second >= 2);
    Dir::of(&mount, devices.0.pid())
        .gpu(1)
        .write("memory.limit", 64 * MIB);
    devices.refused(&format!("async {} {stream}", 128 * MIB));
    devices.ok(&format!("async {} null", 128 * MIB));
    devices.ok(&format!("free {memory}"));
}

#[test]
fn the_tightest_of_the_devices_and_the_processs_limit_decides_to_the_byte() {
    let mount = gpus(3);
    let mut devices = Devices::start(&mount);
    devices.contexts(3);
    let dir = Dir::of(&mount, devices.0.pid());
    let base = charged(&dir, 3);
    let all: u64 = base.iter().sum();
    dir.write("memory.limit", all + 20 * MIB);
    for (index, own) in (0..).zip([8, 16, 100]) {
        dir.gpu(index)
            .write("memory.limit", base[index as usize] + own * MIB);
    }
    devices.ok("current 0");
    devices.refused(&format!("alloc {}", 8 * MIB + 1));
    let first = devices.ok(&format!("alloc {}", 8 * MIB));
    devices.refused("alloc 1");
    assert_eq!(devices.ask("meminfo"), [0, 0, base[0] + 8 * MIB]);

    // The device has room for 16, the process as a whole for 12.
    devices.ok("current 1");
    assert_eq!(devices.ask("meminfo")[1], 12 * MIB);
    devices.refused(&format!("alloc {}", 12 * MIB + 1));
    let second = devices.ok(&format!("alloc {}", 12 * MIB));
    assert_eq!(
        devices.ask("meminfo"),
        [0, 0, (base[1] + 16 * MIB).min(all + 20 * MIB)]
    );
    devices.ok("current 2");
    devices.refused("alloc 1");
    assert_eq!(devices.ask("meminfo")[1], 0);
    assert_eq!(dir.number("memory.current"), all + 20 * MIB);

    devices.ok(&format!("free {first}"));
    devices.ok(&format!("alloc {}", 8 * MIB));
    devices.refused("alloc 1");
    devices.ok(&format!("free {second}"));
    assert_eq!(devices.ask("meminfo")[1], 12 * MIB);
    let refusals = |dir: &Dir<'_>| dir.key("memory.events", "oom");
    assert_eq!(refusals(&dir.gpu(0)), 2);
    assert_eq!(refusals(&dir.gpu(1)) + refusals(&dir.gpu(2)), 0);
    assert_eq!(refusals(&dir), 5, "its own, and those of its devices");
    assert_eq!(dir.number("memory.peak"), all + 20 * MIB);
}

#[test]
fn threads_on_several_devices_fill_the_processs_limit_and_not_one_block_more() {
    let mount = gpus(4);
    let mut devices = Devices::start(&mount);
    devices.contexts(4);
    let dir = Dir::of(&mount, devices.0.pid());
    let base = charged(&dir, 4);
    let all: u64 = base.iter().sum();
    dir.write("memory.limit", all + 200 * 4096 + 4095);
    for (index, base) in (0..).zip(&base[..3]) {
        dir.gpu(index).write("memory.limit", base + 60 * 4096);
    }
    let got = devices.ask("race 4096");
    assert_eq!(got.iter().sum::<u64>(), 200, "{got:?}");
    assert!(got[..3].iter().all(|blocks| *blocks <= 60), "{got:?}");
    let want: Vec<u64> = base
        .iter()
        .zip(&got)
        .map(|(base, blocks)| base + blocks * 4096)
        .collect();
    assert_eq!(charged(&dir, 4), want);
}

/// Whatever is allocated, freed and destroyed from wherever, what is charged on each device is what the process holds
/// there by the driver's own count.
#[test]
fn through_a_thousand_calls_each_device_is_charged_what_the_driver_gave() {
    const GPUS: u32 = 3;
    let mount = gpus(GPUS);
    let mut devices = Devices::start(&mount);
    let mut truth = Nvml::bare(&mount);
    let pid = devices.0.pid();
    let dir = Dir::of(&mount, pid);
    // A context and a stream of it on each device, and a pool.
    let (mut contexts, mut streams) = (Vec::new(), Vec::new());
    for device in 0..u64::from(GPUS) {
        contexts.push(devices.ok(&format!("create {device}")));
        streams.push(devices.ok("stream 1"));
        devices.ok(&format!("pool {device}"));
        dir.gpu(u32::try_from(device).expect("few"))
            .write("memory.limit", 300 * MIB);
    }
    dir.write("memory.limit", 600 * MIB);

    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    let mut held: Vec<u64> = Vec::new();
    let (mut refused, mut allocated) = (0, 0);
    for call in 1..=1000 {
        let (here, there) = (below(u64::from(GPUS)), below(u64::from(GPUS)));
        devices.ok(&format!("current {}", contexts[here as usize]));
        let bytes = (below(24) + 1) * MIB - below(2) * 100;
        let command = match below(12) {
            0 => format!("alloc {bytes}"),
            1 => format!("managed {bytes}"),
            2 => format!("array {}", bytes.min(100_000)),
            3 => format!("vmm {there} {}", bytes.next_multiple_of(2 * MIB)),
            4 => format!("async {bytes} {}", streams[there as usize]),
            5 => format!("from {there} {bytes} {}", streams[there as usize]),
            6 => format!("async {bytes} null"),
            7 if below(20) == 0 => {
                // All that the context owned goes with it; the rest is freed, or its handles are nobody's.
                let gone = contexts[there as usize];
                devices.ok(&format!("destroy {gone}"));
                contexts[there as usize] = devices.ok(&format!("create {there}"));
                streams[there as usize] = devices.ok("stream 1");
                continue;
            }
            _ if held.is_empty() => continue,
            _ => {
                let one = held.swap_remove(below(held.len() as u64) as usize);
                devices.ask(&format!("free {one}"));
                continue;
            }
        };
        match devices.ask(&command)[..] {
            [0, memory] => {
                held.push(memory);
                allocated += 1;
            }
            [OUT_OF_MEMORY, _] => refused += 1,
            // A stream that went with its context.
            ref other => assert!(
                other[0] == 400 || other[0] == INVALID_CONTEXT,
                "{command}: {other:?}"
            ),
        }
        if call % 50 == 0 {
            for device in 0..GPUS {
                devices.ok(&format!("current {}", contexts[device as usize]));
                devices.ok("sync");
            }
            for device in 0..GPUS {
                let charged = dir.gpu(device).number("memory.current");
                let holds = truth.computing(device).get(&pid).copied().unwrap_or(0);
                assert_eq!(charged, holds, "device {device}, call {call}");
                assert!(charged <= 300 * MIB, "device {device}, call {call}: {charged}");
            }
            let all = dir.number("memory.current");
            assert!(all <= 600 * MIB, "call {call}: {all}");
        }
    }
    assert!(
        allocated > 200 && refused > 10,
        "{allocated} allocated, {refused} refused"
    );
}

#[test]
fn peers_reach_each_others_memory_and_that_charges_nothing() {
    let mount = gpus(2);
    let mut devices = Devices::start(&mount);
    devices.contexts(2);
    let there = devices.ok(&format!("alloc {MIB}"));
    devices.ok("current 0");
    let here = devices.ok(&format!("alloc {MIB}"));
    let charges = Charges::of(&mount, &devices, 2);
    let dir = Dir::of(&mount, devices.0.pid());
    let copies = |index| dir.gpu(index).key("compute.stat", "nr_copies");
    let before = [copies(0), copies(1)];

    assert_eq!(devices.ok("can 0 1"), 1);
    devices.ok("enable 1");
    devices.ok(&format!("fill {here} 7"));
    devices.ok(&format!("peer {there} 1 {here} 0 4096 sync"));
    assert_eq!(devices.ok(&format!("word {there}")), 7);
    devices.ok(&format!("fill {here} 8"));
    let stream = devices.ok("stream 0");
    devices.ok(&format!("peer {there} 1 {here} 0 4096 {stream}"));
    devices.ok("sync");
    assert_eq!(devices.ok(&format!("word {there}")), 8);
    assert_eq!(charges.since(), [0, 0]);
    // Counted where they were submitted: two sets, two copies between the devices, two words.
    assert_eq!([copies(0) - before[0], copies(1) - before[1]], [6, 0]);
    devices.ok("disable 1");
}

#[test]
fn the_queries_tell_each_device_its_own_and_never_more_than_there_is() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 2)
            .env("SIMGPU_MEMORY", "1G"),
    );
    let mut devices = Devices::start(&mount);
    devices.contexts(2);
    let dir = Dir::of(&mount, devices.0.pid());
    let current = charged(&dir, 2);
    dir.gpu(1).write("memory.limit", 256 * MIB);
    assert_eq!(devices.ok("total 0"), 1024 * MIB);
    assert_eq!(devices.ok("total 1"), 256 * MIB);
    assert_eq!(devices.ask("meminfo"), [0, 256 * MIB - current[1], 256 * MIB]);
    devices.ok("current 0");
    assert_eq!(devices.ask("meminfo")[2], 1024 * MIB);
    dir.gpu(0).write("memory.limit", "1T");
    assert_eq!(devices.ok("total 0"), 1024 * MIB);
    assert_eq!(devices.ask("meminfo")[2], 1024 * MIB);

    devices.ok(&format!("alloc {}", 100 * MIB));
    dir.gpu(0).write("memory.limit", 50 * MIB);
    assert_eq!(devices.ask("meminfo"), [0, 0, 50 * MIB], "not less than nothing");
    assert_eq!(devices.ok("total 0"), 50 * MIB);
    dir.gpu(0).write("memory.limit", 0);
    assert_eq!(devices.ask("meminfo"), [0, 0, 0]);
    assert_eq!(devices.ask("total 0"), [0, 0]);
    dir.gpu(0).write("memory.limit", "max");

    let mut bare = Devices::spawn(mount.bare_command(program()));
    bare.ok("init");
    bare.contexts(2);
    assert_eq!(
        devices.ask("nulls 0"),
        bare.ask("nulls 0"),
        "as the driver takes them"
    );

    // What pools and graphs say of themselves is the driver's to say, and holds under a limit.
    let pool = devices.ok("pool 1");
    devices.ok("current 1");
    let taken = devices.ok(&format!("from {pool} {} null", 8 * MIB));
    let (reserved, used) = (
        devices.ok(&format!("attribute {pool} 5")),
        devices.ok(&format!("attribute {pool} 7")),
    );
    assert!(used >= 8 * MIB && used <= reserved && reserved <= 256 * MIB);
    assert_eq!(dir.gpu(1).key("memory.stat", "pool"), reserved);
    devices.refused(&format!("from {pool} {} null", 256 * MIB));
    assert_eq!(
        devices.ok(&format!("attribute {pool} 7")),
        used,
        "a refusal leaves nothing behind"
    );
    devices.ok(&format!("free {taken}"));
    devices.ok("sync");
    for attribute in 0..4 {
        assert_eq!(devices.ok(&format!("graphmem 1 {attribute}")), 0);
    }
}

#[test]
fn devices_that_the_daemon_does_not_know_count_for_the_process_as_a_whole() {
    let mount = gpus(1);
    // The same first card, and two that only the program has.
    let more = tempfile::tempdir().expect("a directory");
    let mut command = mount.command(program());
    command.env("SIMGPU_DIR", more.path()).env("SIMGPU_DEVICES", "3");
    let mut devices = Devices::spawn(command);
    devices.ok("init");
    devices.contexts(3);
    let dir = Dir::of(&mount, devices.0.pid());
    devices.ok("current 0");
    devices.ok(&format!("alloc {MIB}"));
    devices.ok("current 2");
    devices.ok(&format!("alloc {}", 2 * MIB));
    assert_eq!(ledger(&dir, 1), [MIB]);
    assert_eq!(dir.key("memory.stat", "linear"), 3 * MIB);
    let current = dir.number("memory.current");
    assert!(current >= 3 * MIB);
    assert!(!dir.gpu(1).exists());

    dir.write("memory.limit", current + MIB);
    devices.refused(&format!("alloc {}", MIB + 1));
    assert_eq!(devices.ask("meminfo")[1..], [MIB, current + MIB]);
    devices.ok("current 1");
    devices.ok(&format!("alloc {MIB}"));
    devices.refused("alloc 1");
    dir.write("compute.freeze", 1);
    wait_until("all is still", || dir.is_frozen());
    devices.0.say("spin 1 null");
    wait_until("a launch on an unknown device waits", || {
        dir.key("compute.stat", "nr_frozen") == 1
    });
    dir.write("compute.freeze", 0);
    assert_eq!(devices.0.line().as_deref(), Some("0"));
}

#[test]
fn one_device_is_frozen_alone_against_whoever_submits_to_it_from_wherever() {
    let mount = gpus(2);
    let mut devices = Devices::start(&mount);
    devices.contexts(2);
    let dir = Dir::of(&mount, devices.0.pid());
    let (frozen, other) = (dir.gpu(0), dir.gpu(1));
    let waits = || frozen.key("compute.stat", "nr_frozen");

    let (there, there_too) = (
        devices.ok(&format!("alloc {MIB}")),
        devices.ok(&format!("alloc {MIB}")),
    );
    let stream_there = devices.ok("stream 1");
    devices.ok("current 0");
    let (here, here_too) = (
        devices.ok(&format!("alloc {MIB}")),
        devices.ok(&format!("alloc {MIB}")),
    );
    let stream_here = devices.ok("stream 1");
    devices.ok(&format!("fill {here} 5"));
    devices.ok("spin 0 null");
    devices.ok("sync");
    devices.ok("current 1");
    devices.ok(&format!("fill {there} 6"));

    let concerns_it = [
        format!("copy {here_too} {here} 4096 {stream_here}"),
        format!("copy {here_too} {here} 4096 null"),
        format!("copy {there_too} {there} 4096 {stream_here}"),
        format!("peer {there} 1 {here} 0 4096 sync"),
        format!("peer {there} 1 {here} 0 4096 {stream_there}"),
        format!("copy3d {there} 1 {here} 0 4096"),
        format!("copy2d {here_too} {here} 4096"),
        format!("word {here}"),
        format!("fill {here_too} 9"),
    ];
    for command in &concerns_it {
        frozen.write("compute.freeze", 1);
        wait_until("it stands still", || frozen.is_frozen());
        assert!(!other.is_frozen() && !dir.is_frozen(), "{command}");
        let (submitted, waited) = (other.launches(), waits());
        devices.ok("spin 0 null");
        devices.ok(&format!("spin 0 {stream_there}"));
        devices.ok(&format!("copy {there_too} {there} 4096 {stream_there}"));
        devices.ok("sync");
        devices.ok(&format!("copy2d {there_too} {there} 4096"));
        assert_eq!(
            devices.ok(&format!("word {there}")),
            devices.ok(&format!("word {there_too}"))
        );
        assert_eq!(
            (other.launches() - submitted, waits()),
            (2, waited),
            "the other goes on"
        );

        devices.0.say(command);
        wait_until("it waits", || waits() > waited);
        assert!(frozen.is_frozen(), "{command}");
        assert_eq!(devices.0.line_now(), None, "{command}");
        frozen.write("compute.freeze", 0);
        let answer = devices.0.line();
        assert!(answer.is_some_and(|answer| answer.starts_with('0')), "{command}");
        assert_eq!(waits(), waited + 1, "{command}");
    }
    assert_eq!(devices.ok(&format!("word {there}")), 5);
    assert_eq!(frozen.launches(), 1);
}

#[test]
fn a_thaw_of_the_process_leaves_a_device_frozen_that_is_so_by_itself() {
    let mount = gpus(2);
    let mut devices = Devices::start(&mount);
    devices.contexts(2);
    let dir = Dir::of(&mount, devices.0.pid());
    devices.ok("current 0");
    let (to, from) = (
        devices.ok(&format!("alloc {MIB}")),
        devices.ok(&format!("alloc {MIB}")),
    );
    let stream = devices.ok("stream 0");
    devices.ok("current 1");
    dir.gpu(0).write("compute.freeze", 1);
    dir.write("compute.freeze", 1);
    wait_until("all stands still", || dir.is_frozen());
    dir.write("compute.freeze", 0);
    devices.0.say(&format!("copy {to} {from} 4096 {stream}"));
    wait_until("it waits", || dir.gpu(0).key("compute.stat", "nr_frozen") == 1);
    assert!(dir.gpu(0).is_frozen());
    assert_eq!(devices.0.line_now(), None);
    dir.gpu(0).write("compute.freeze", 0);
    assert_eq!(devices.0.line().as_deref(), Some("0"));
}

#[test]
fn threads_that_copy_on_another_devices_stream_without_pause_all_stop_and_all_go_on() {
    const THREADS: u64 = 4;
    let mount = gpus(2);
    let mut devices = Devices::start(&mount);
    devices.contexts(2);
    let dir = Dir::of(&mount, devices.0.pid());
    let (to, from) = (devices.ok("alloc 4096"), devices.ok("alloc 4096"));
    let streams: Vec<u64> = (0..THREADS).map(|_| devices.ok("stream 1")).collect();
    devices.ok("current 0");
    for stream in streams {
        devices.ok(&format!("churn {to} {from} {stream}"));
    }
    let mut made = |devices: &mut Devices| devices.ask("progress")[0];
    for round in 0..20 {
        let before = made(&mut devices);
        wait_until("copies are made", || made(&mut devices) > before + 100);
        dir.gpu(1).write("compute.freeze", 1);
        wait_until("it stands still", || dir.gpu(1).is_frozen());
        // Those whose last call has returned may yet have it to count.
        let still = made(&mut devices);
        for _ in 0..20 {
            devices.ok("spin 0 null");
        }
        assert!(made(&mut devices) <= still + THREADS, "round {round}");
        dir.gpu(1).write("compute.freeze", 0);
    }
    let least = made(&mut devices);
    let copies = |index| dir.gpu(index).key("compute.stat", "nr_copies");
    assert!(
        copies(0) >= least && copies(1) == 0,
        "counted where they are submitted"
    );
}
