//! Tests GPUs in MIG mode: each instance is a device of its own for the daemon, the library and NVML.

use std::collections::BTreeMap;
use std::fs;

use nix::sys::signal::{Signal, kill};
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::contended::{BATCH, goes_on};
use crate::driver::Dir;
use crate::nvml::{self, Nvml, SUCCESS};
use crate::several_gpus::{self, Devices, MIB, NO_DEVICE, uuids};

const GIB: u64 = 1 << 30;

/// NVML result codes.
const INVALID_ARGUMENT: u64 = 2;
const NOT_SUPPORTED: u64 = 3;
const NOT_FOUND: u64 = 6;

/// Bytes of a context.
const CONTEXT: u64 = 32 * MIB;

/// Mounts a GPU with two instances followed by an undivided GPU.
fn divided() -> Mount {
    Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 2)
            .env("SIMGPU_CONTEXT_MEMORY", "32M")
            .env("SIMGPU_MIG", "0:1g.5gb,2g.10gb"),
    )
}

/// Starts `programs/devices.c` with `CUDA_VISIBLE_DEVICES` set to `form`.
#[track_caller]
fn seeing(mount: &Mount, form: &str) -> Devices {
    let mut command = mount.command(several_gpus::program());
    command.env("CUDA_VISIBLE_DEVICES", form);
    Devices::spawn(command)
}

/// Starts `programs/nvml.c` with `CUDA_VISIBLE_DEVICES` set to `form`.
#[track_caller]
fn monitoring(mount: &Mount, form: &str) -> Nvml {
    let mut command = mount.command(nvml::program());
    command.env("CUDA_VISIBLE_DEVICES", form);
    let mut nvml = Nvml::spawn(command);
    assert_eq!(nvml.ask("cuda"), [SUCCESS]);
    nvml
}

/// Returns the digits of a UUID in NVML's notation.
fn digits(uuid: &str) -> String {
    let (_, digits) = uuid.split_once('-').expect("a kind and digits");
    digits.replace('-', "")
}

/// Returns the number by which `programs/nvml.c` names an instance of the first GPU.
fn instance(number: u32) -> u32 {
    1000 + number
}

#[test]
fn simulated_nvml_distinguishes_instances() {
    let mount = divided();
    let mut nvml = Nvml::bare(&mount);
    assert_eq!(nvml.ask("count"), [SUCCESS, 2]);
    assert_eq!(nvml.ask("mode 0"), [SUCCESS, 1, 1]);
    assert_eq!(nvml.ask("mode 1"), [SUCCESS, 0, 0]);
    assert_eq!(
        (nvml.ask("most 0"), nvml.ask("most 1")),
        (vec![SUCCESS, 7], vec![SUCCESS, 0])
    );
    for (number, slices, gib) in [(0, 1, 5), (1, 2, 10)] {
        let it = instance(number);
        assert_eq!(nvml.ask(&format!("instance {it}")), [SUCCESS, 1]);
        assert_eq!(
            nvml.ask(&format!("ids {it}")),
            [SUCCESS, u64::from(number) + 1, 0]
        );
        assert_eq!(nvml.ask(&format!("parent {it}")), [SUCCESS, 0, number.into()]);
        assert_eq!(
            nvml.ask(&format!("memory {it} 1")),
            [SUCCESS, gib * GIB, gib * GIB, 0]
        );
        let name = nvml.0.ask(&format!("name {it}"));
        assert!(name.ends_with(&format!(" MIG {slices}g.{gib}gb")), "{name}");
        let uuid = nvml.0.ask(&format!("uuid {it} 41"));
        let (_, uuid) = uuid.split_once(' ').expect("a UUID");
        assert!(uuid.starts_with("MIG-"), "{uuid}");
        assert_eq!(nvml.ask(&format!("by {uuid}")), [SUCCESS, number.into()]);
        assert_eq!(nvml.ask(&format!("rates {it}"))[0], NOT_SUPPORTED);
    }
    assert_eq!(nvml.ask("instance 0"), [SUCCESS, 0]);
    assert_eq!(nvml.ask("ids 0")[0], NOT_SUPPORTED);
    assert_eq!(nvml.ask("parent 0")[0], INVALID_ARGUMENT);
    assert_eq!(nvml.ask("rates 0")[0], NOT_SUPPORTED);
    assert_eq!(nvml.ask("memory 0 1"), [SUCCESS, 16 * GIB, 16 * GIB, 0]);
    assert_eq!(
        nvml.ask("by MIG-00ff6770-7540-0080-0067-636772000000"),
        [NOT_FOUND, 0]
    );
}

#[test]
fn instances_replace_their_gpu_in_the_device_list() {
    let mount = divided();
    let devices = mount.read("", "devices");
    let lines: Vec<Vec<&str>> = devices
        .lines()
        .map(|line| line.splitn(5, ' ').collect())
        .collect();
    let of = |column: usize| lines.iter().map(|line| line[column]).collect::<Vec<_>>();
    assert_eq!(of(0), ["0", "1", "2"]);
    assert!(of(1)[0].starts_with("MIG-") && of(1)[1].starts_with("MIG-") && of(1)[2].starts_with("GPU-"));
    assert_eq!((of(2)[0], of(2)[1]), ("00000000:01:00.0", "00000000:01:00.0"));
    assert_eq!(of(2)[2], "00000000:02:00.0");
    let totals = [5 * GIB, 10 * GIB, 16 * GIB].map(|bytes| bytes.to_string());
    assert_eq!(of(3), totals);
    assert!(of(4)[0].ends_with("MIG 1g.5gb") && of(4)[1].ends_with("MIG 2g.10gb"));
    assert!(!of(4)[2].contains("MIG"));

    let empty = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 3)
            .env("SIMGPU_MIG", "1:0;2:3"),
    );
    let uuids = uuids(&empty);
    let kinds: Vec<&str> = uuids.iter().map(|uuid| &uuid[..4]).collect();
    assert_eq!(kinds, ["GPU-", "MIG-", "MIG-", "MIG-"]);
}

#[test]
fn process_sees_at_most_one_instance_and_is_charged_there() {
    let mount = divided();
    let uuids = uuids(&mount);
    let gpu = {
        let answer = Nvml::bare(&mount).0.ask("uuid 0 41");
        answer.split_once(' ').expect("a UUID").1.to_owned()
    };
    let [first, second, whole] = [&uuids[0], &uuids[1], &uuids[2]];
    let forms: [(String, usize); 16] = [
        (first.clone(), 0),
        (second.clone(), 1),
        // Prefixes long enough to be unique.
        (second[..8].to_owned(), 1),
        (second[..20].to_owned(), 1),
        // Of several instances only the first is visible, and never together with an undivided GPU.
        (format!("{second},{first}"), 1),
        (format!("{first},{second}"), 0),
        (format!("{second},1"), 1),
        (format!("1,{second}"), 1),
        (format!(" {second} , nonsense"), 1),
        (format!("{second},MIG-00ff6770-7540-0080-0067-636772000000"), 1),
        // Instances named through the GPU, as by drivers before R470.
        ("0".into(), 0),
        (gpu.clone(), 0),
        (format!("MIG-{gpu}/1/0"), 0),
        (format!("MIG-{gpu}/2/0"), 1),
        // An undivided GPU alone.
        ("1".into(), 2),
        (whole.clone(), 2),
    ];
    for (form, index) in forms {
        let mut devices = seeing(&mount, &form);
        devices.ok("init");
        assert_eq!(devices.ok("count"), 1, "{form}");
        assert_eq!(
            devices.0.ask("uuid 0"),
            format!("0 {}", digits(&uuids[index])),
            "{form}"
        );
        let parent = if index < 2 { &gpu } else { whole };
        assert_eq!(devices.0.ask("gpu 0"), format!("0 {}", digits(parent)), "{form}");
        devices.contexts(1);
        devices.ok(&format!("alloc {MIB}"));
        let dir = Dir::of(&mount, devices.0.pid());
        let linear = |index| dir.gpu(index).key("memory.stat", "linear");
        let want: Vec<u64> = (0..3).map(|at| if at == index { MIB } else { 0 }).collect();
        assert_eq!([linear(0), linear(1), linear(2)], want[..], "{form}");
    }

    let mut devices = Devices::start(&mount);
    assert_eq!(devices.ok("count"), 1, "devices without CUDA_VISIBLE_DEVICES");
    assert_eq!(devices.0.ask("uuid 0"), format!("0 {}", digits(first)));
}

#[test]
fn name_matching_no_instance_shows_none() {
    let mount = divided();
    let uuids = uuids(&mount);
    let ambiguous = &uuids[0][..6];
    assert!(uuids[1].starts_with(ambiguous));
    for form in [
        "MIG-00ff6770-7540-0080-0067-636772000000",
        ambiguous,
        "MIG-",
        &format!("{}0", uuids[0]),
        &uuids[0].replace("MIG-", "GPU-"),
        &format!("nonsense,{}", uuids[0]),
        &format!("{0},{0}", uuids[0]),
        &format!("MIG-{}/1/0", uuids[2]),
    ] {
        let mut devices = seeing(&mount, form);
        assert_eq!(devices.ask("init"), [NO_DEVICE], "{form}");
        assert!(!mount.governs(devices.0.pid()), "{form}");
    }
}

#[test]
fn each_instance_has_its_own_memory_limit_and_overhead() {
    let mount = divided();
    let uuids = uuids(&mount);
    let mut on: Vec<Devices> = uuids[..2].iter().map(|uuid| seeing(&mount, uuid)).collect();
    for (index, devices) in (0..).zip(&mut on) {
        devices.ok("init");
        devices.contexts(1);
        let size = [5, 10][index as usize] * GIB;
        assert_eq!(devices.ok("total 0"), size);
        assert_eq!(devices.ask("meminfo")[1..], [size - CONTEXT, size]);
        let dir = Dir::of(&mount, devices.0.pid());
        wait_until("the context is measured", || {
            dir.gpu(index).number("memory.current") == CONTEXT
        });
        assert_eq!(dir.number("memory.current"), CONTEXT);
        dir.gpu(1 - index).write("memory.limit", 1);
        dir.gpu(index).write("memory.limit", CONTEXT + 64 * MIB);
        assert_eq!(devices.ok("total 0"), CONTEXT + 64 * MIB);
        assert_eq!(devices.ask("meminfo")[1..], [64 * MIB, CONTEXT + 64 * MIB]);
        devices.refused(&format!("alloc {}", 64 * MIB + 1));
        devices.ok(&format!("alloc {}", 64 * MIB));
        devices.refused("alloc 1");
        assert_eq!(dir.gpu(index).number("memory.current"), CONTEXT + 64 * MIB);
        assert_eq!(dir.gpu(1 - index).number("memory.current"), 0);
        dir.gpu(index).write("memory.limit", "max");
        devices.refused(&format!("alloc {}", size - CONTEXT - 64 * MIB + 1));
        devices.ok(&format!("alloc {}", size - CONTEXT - 64 * MIB));
    }
}

#[test]
fn nvml_shows_limited_process_itself_on_instance_and_gpu() {
    let mount = divided();
    let uuids = uuids(&mount);
    let mut other = monitoring(&mount, &uuids[1]);
    let mut neighbour = monitoring(&mount, &uuids[0]);
    for nvml in [&mut other, &mut neighbour] {
        assert_eq!(nvml.ask(&format!("alloc 0 {}", 8 * MIB)), [SUCCESS]);
    }
    let mut nvml = monitoring(&mount, &uuids[1]);
    assert_eq!(nvml.ask(&format!("alloc 0 {}", 96 * MIB)), [SUCCESS]);
    let pid = nvml.0.pid();
    let dir = Dir::of(&mount, pid);
    let current = 96 * MIB + CONTEXT;
    wait_until("the context is measured", || {
        dir.gpu(1).number("memory.current") == current
    });
    let lengths = |nvml: &mut Nvml| [nvml.computing(0).len(), nvml.computing(instance(1)).len()];
    assert_eq!(
        lengths(&mut nvml),
        [3, 2],
        "the unlimited process does not see all others"
    );

    // One limit on the instance and one on the process.
    for limited in [dir.gpu(1), dir.clone()] {
        limited.write("memory.limit", 512 * MIB);
        let told = [SUCCESS, 512 * MIB, 512 * MIB - current, current];
        let own = BTreeMap::from([(pid, current)]);
        for device in [instance(1), 0] {
            for version in 1..=2 {
                assert_eq!(nvml.ask(&format!("memory {device} {version}")), told, "{device}");
            }
            assert_eq!(nvml.computing(device), own, "{device}");
            assert_eq!(
                nvml.list(&format!("details {device} 16")),
                (SUCCESS, 1, own.clone())
            );
        }
        limited.write("memory.limit", "max");
    }
    assert_eq!(nvml.ask("memory 0 1"), other.ask("memory 0 1"));
    assert_eq!(lengths(&mut nvml), [3, 2]);

    // A limit on another device does not affect this one.
    dir.gpu(0).write("memory.limit", 512 * MIB);
    assert_eq!(nvml.ask("memory 0 1"), other.ask("memory 0 1"));
    assert_eq!(
        nvml.ask(&format!("memory {} 1", instance(0))),
        [SUCCESS, 512 * MIB, 512 * MIB, 0]
    );
    assert!(nvml.computing(instance(0)).is_empty());
    assert_eq!(nvml.computing(instance(1)).len(), 2);
}

#[test]
fn instance_freeze_holds_only_processes_on_it() {
    let mount = divided();
    let uuids = uuids(&mount);
    let mut devices = seeing(&mount, &uuids[1]);
    devices.ok("init");
    devices.contexts(1);
    devices.ok("spin 0 null");
    devices.ok("sync");
    let dir = Dir::of(&mount, devices.0.pid());

    dir.gpu(0).freeze();
    devices.ok("spin 0 null");
    devices.ok("sync");
    assert_eq!(dir.gpu(1).launches(), 2);

    dir.gpu(1).freeze();
    devices.0.say("spin 0 null");
    wait_until("the launch waits at the instance's gate", || {
        dir.gpu(1).key("compute.stat", "nr_frozen") == 1
    });
    dir.gpu(0).write("compute.freeze", 0);
    assert!(dir.gpu(1).is_frozen());
    assert_eq!(devices.0.line_now(), None);
    dir.gpu(1).write("compute.freeze", 0);
    assert_eq!(devices.0.line().as_deref(), Some("0"));
    assert_eq!(dir.gpu(0).launches(), 0);
}

/// Returns the current UUID of an instance of the first GPU, from NVML.
#[track_caller]
pub(crate) fn uuid_of(mount: &Mount, number: u32) -> String {
    let answer = Nvml::bare(mount).0.ask(&format!("uuid {} 41", instance(number)));
    answer.split_once(' ').expect("a UUID").1.to_owned()
}

#[test]
fn instance_created_later_is_governed() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", "32M")
            .env("SIMGPU_MIG", "0:1g.5gb"),
    );
    let group = mount.path().join("team");
    fs::create_dir(&group).expect("a group");
    let mut before = seeing(&mount, &uuids(&mount)[0]);
    before.ok("init");
    before.contexts(1);
    let old = Dir::of(&mount, before.0.pid());
    mount.write("team", "gcgroup.procs", &before.0.pid().to_string());
    mount.truth().divide("0:1g.5gb,2g.10gb");
    let uuid = uuid_of(&mount, 1);
    let mut devices = seeing(&mount, &uuid);
    devices.ok("init");
    devices.contexts(1);
    devices.ok(&format!("alloc {MIB}"));
    let dir = Dir::of(&mount, devices.0.pid());
    mount.write("team", "gcgroup.procs", &devices.0.pid().to_string());
    wait_until("the new instance is listed", || uuids(&mount).len() == 2);
    assert_eq!(uuids(&mount)[1], uuid);
    wait_until("the earlier charge is shown on the instance", || {
        dir.gpu(1).key("memory.stat", "linear") == MIB
    });
    wait_until("the context is measured", || {
        dir.gpu(1).number("memory.current") == CONTEXT + MIB
    });
    assert_eq!(mount.number("team/1", "memory.current", ""), CONTEXT + MIB);

    dir.gpu(1).write("memory.limit", CONTEXT + 64 * MIB);
    devices.refused(&format!("alloc {}", 63 * MIB + 1));
    dir.gpu(1).write("memory.limit", "max");
    mount.write("team/1", "memory.limit", &(CONTEXT + 32 * MIB).to_string());
    devices.refused(&format!("alloc {}", 31 * MIB + 1));
    devices.ok(&format!("alloc {}", 31 * MIB));
    before.ok(&format!("alloc {}", 256 * MIB));
    assert_eq!(old.gpu(0).key("memory.stat", "linear"), 256 * MIB);

    mount.write("team", "compute.freeze", "1");
    wait_until("the group is frozen and drained", || {
        mount.number("team", "gcgroup.events", "frozen") == 1
    });
    assert!(dir.gpu(1).is_frozen() && old.is_frozen());
}

#[test]
fn sighup_lists_unused_instances() {
    let mut mount = Mount::with(Config::default().env("SIMGPU_MIG", "0:1g.5gb"));
    // The simulated machine keeps its state while a process uses it.
    let mut user = seeing(&mount, &uuids(&mount)[0]);
    user.ok("init");
    mount.truth().divide("0:1g.5gb,1g.5gb,2g.5gb");
    assert_eq!(uuids(&mount).len(), 1);
    let daemon = mount.daemon().expect("the daemon runs");
    kill(daemon, Signal::SIGHUP).expect("the daemon runs");
    wait_until("the new instances are listed", || uuids(&mount).len() == 3);
    let listed = uuids(&mount);
    assert_eq!(listed[1..], [uuid_of(&mount, 1), uuid_of(&mount, 2)]);
    assert!(mount.path().join("2").symlink_metadata().is_err());
    mount.kill9();
    mount.restart();
    assert_eq!(uuids(&mount), listed);
}

/// Starts a batch job on one instance.
#[track_caller]
fn batch(mount: &Mount, uuid: &str, priority: u32) -> Governed {
    let mut command = mount.command(artifacts().load());
    command.args(BATCH).env("CUDA_VISIBLE_DEVICES", uuid);
    let mut job = Governed::spawn(command);
    job.expect("ready");
    mount.write(job.pid(), "compute.priority", &priority.to_string());
    job
}

#[test]
fn jobs_contend_only_on_the_same_instance() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_MIG", "0:2")
            .arg("--policy")
            .arg("strict"),
    );
    let uuids = uuids(&mount);
    let [high, other] = [batch(&mount, &uuids[0], 0), batch(&mount, &uuids[1], 15)];
    let throttled = |job: &Governed| mount.number(job.pid(), "compute.stat", "nr_throttled");
    // Instances are numbered after the GPU itself.
    for (index, job) in [(1, &high), (2, &other)] {
        goes_on(&mount, job.pid(), index, 100_000);
    }
    assert_eq!([throttled(&high), throttled(&other)], [0, 0]);

    let third = batch(&mount, &uuids[0], 15);
    wait_until("the low-priority job is throttled", || throttled(&third) > 0);
    goes_on(&mount, other.pid(), 2, 50_000);
    assert_eq!(throttled(&other), 0);
}
