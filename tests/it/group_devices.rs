//! Tests `gcgroup.devices`: processes of a group see only its GPUs, in the driver and in NVML.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use support::{Config, Mount, artifacts, wait_until};

use crate::driver::Dir;
use crate::nvml::{self, Nvml, SUCCESS};
use crate::several_gpus::{Devices, NO_DEVICE, program, uuids};

/// NVML's result codes.
const INVALID_ARGUMENT: u64 = 2;
const NOT_FOUND: u64 = 6;

fn mount() -> Mount {
    Mount::with(Config::default().env("SIMGPU_DEVICES", 4))
}

#[track_caller]
fn group(mount: &Mount, path: &str, devices: &str) {
    std::fs::create_dir_all(mount.path().join(path)).expect("a group");
    mount.write(path, "gcgroup.devices", devices);
}

fn in_group(mut command: Command, group: &str, visible: Option<&str>) -> Command {
    command.env("GCGROUP_GROUP", group);
    if let Some(visible) = visible {
        command.env("CUDA_VISIBLE_DEVICES", visible);
    }
    command
}

/// Starts a program that uses CUDA in a group.
#[track_caller]
fn cuda(mount: &Mount, group: &str, visible: Option<&str>) -> Devices {
    Devices::spawn(in_group(mount.command(program()), group, visible))
}

/// Returns the indices of the GPUs that the program sees, in its order.
#[track_caller]
fn seen(mount: &Mount, devices: &mut Devices) -> Vec<usize> {
    let uuids: Vec<String> = uuids(mount)
        .iter()
        .map(|uuid| uuid[4..].replace('-', ""))
        .collect();
    let count = devices.ok("count");
    let place = |device| {
        let answer = devices.0.ask(&format!("uuid {device}"));
        uuids
            .iter()
            .position(|uuid| answer == format!("0 {uuid}"))
            .expect("a known GPU")
    };
    (0..count).map(place).collect()
}

/// Returns the indices of the GPUs that NVML lists.
#[track_caller]
fn listed(mount: &Mount, nvml: &mut Nvml) -> Vec<usize> {
    let uuids = uuids(mount);
    let count = nvml.ask("count");
    assert_eq!(count[0], SUCCESS);
    let place = |index| {
        let answer = nvml.0.ask(&format!("uuid {index} 96"));
        uuids
            .iter()
            .position(|uuid| answer == format!("0 {uuid}"))
            .expect("a known GPU")
    };
    (0..count[1]).map(place).collect()
}

#[test]
fn driver_shows_only_devices_of_nested_groups() {
    let mount = mount();
    group(&mount, "a", "1-3");
    group(&mount, "a/b", "0,2,3");
    assert_eq!(mount.read("a/b", "gcgroup.devices"), "0,2,3");
    assert_eq!(mount.read("a/b", "gcgroup.devices.effective"), "2,3");
    for (visible, want) in [
        (None, &[2, 3][..]),
        (Some("1,0"), &[3, 2]),
        (Some("0"), &[2]),
        (Some("1,9,0"), &[3]),
    ] {
        let mut devices = cuda(&mount, "a/b", visible);
        devices.ok("init");
        assert_eq!(seen(&mount, &mut devices), want, "{visible:?}");
        assert_eq!(
            devices.ask(&format!("create {}", want.len()))[0],
            101,
            "CUDA_ERROR_INVALID_DEVICE"
        );
        devices.ok("create 0");
        devices.ok("alloc 1048576");
        let dir = Dir::of(&mount, devices.0.pid());
        let gpu = u32::try_from(want[0]).expect("an index");
        assert!(dir.gpu(gpu).number("memory.current") >= 1 << 20, "{visible:?}");
    }
}

#[test]
fn process_in_group_without_devices_has_no_device() {
    let mount = mount();
    group(&mount, "none", "none");
    group(&mount, "one", "1");
    for (path, visible) in [
        ("none", None),
        ("none", Some("0")),
        ("one", Some("1")),
        ("one", Some("")),
    ] {
        let mut devices = cuda(&mount, path, visible);
        assert_eq!(devices.ask("init"), [NO_DEVICE], "{path} {visible:?}");
        assert!(!mount.governs(devices.0.pid()));
    }
}

#[test]
fn numbers_of_driver_and_nvml_are_the_same() {
    let mount = mount();
    group(&mount, "a", "2,3");
    let command = in_group(mount.command(nvml::program()), "a", Some("1"));
    let shown = listed(&mount, &mut Nvml::spawn(command));
    let mut devices = cuda(&mount, "a", Some("1"));
    devices.ok("init");
    assert_eq!(seen(&mount, &mut devices), [shown[1]]);
}

#[test]
fn run_translates_the_numbers_of_its_own_view() {
    let mount = mount();
    group(&mount, "a", "1-3");
    group(&mount, "a/b", "2,3");
    let shown = |groups: &[&str], visible: &str| {
        let mut command = mount.gcgroupfs(&[]);
        for (place, group) in groups.iter().enumerate() {
            if place > 0 {
                command.arg(artifacts().gcgroupfs());
            }
            command.args(["run", "--group", group, "--"]);
        }
        let out = command
            .args(["printenv", "CUDA_VISIBLE_DEVICES"])
            .env("CUDA_VISIBLE_DEVICES", visible)
            .output()
            .expect("the command runs");
        String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
    };
    assert_eq!(shown(&["a/b"], "2,3"), "0,1");
    assert_eq!(shown(&["a/b"], "0,3"), "1");
    assert_eq!(shown(&["a"], "0"), "");
    assert_eq!(shown(&["a", "a/b"], "3,2"), "1,0", "nested");
    let uuid = &uuids(&mount)[2];
    assert_eq!(shown(&["a/b"], uuid), *uuid);
}

#[test]
fn unusual_list_of_the_program_shows_no_device() {
    let mount = mount();
    group(&mount, "a", "0,2");
    for visible in [
        OsStr::from_bytes(b"0,\xff").to_owned(),
        "0,".repeat(200).into(),
        "0,".repeat(20_000).into(),
        " ".repeat(20_000).into(),
    ] {
        let mut command = in_group(mount.command(program()), "a", None);
        command.env("CUDA_VISIBLE_DEVICES", &visible);
        let mut devices = Devices::spawn(command);
        assert_eq!(devices.ask("init"), [NO_DEVICE], "{} bytes", visible.len());
        let mut command = in_group(mount.command(nvml::program()), "a", None);
        command.env("CUDA_VISIBLE_DEVICES", &visible);
        let mut nvml = Nvml::spawn(command);
        assert_eq!(listed(&mount, &mut nvml), [0, 2], "{} bytes", visible.len());
    }
}

#[test]
fn changed_list_holds_for_processes_that_start_later() {
    let mut mount = mount();
    group(&mount, "a", "0,1");
    let mut early = cuda(&mount, "a", None);
    early.ok("init");
    mount.write("a", "gcgroup.devices", "1,2");
    early.ok("init");
    assert_eq!(seen(&mount, &mut early), [0, 1]);
    early.ok("create 0");
    mount.kill9();
    mount.restart();
    assert_eq!(
        mount.read("a", "gcgroup.devices"),
        "1,2",
        "the next daemon has the list"
    );
    let mut late = cuda(&mount, "a", None);
    late.ok("init");
    assert_eq!(seen(&mount, &mut late), [1, 2]);
    wait_until("the early process has registered again", || {
        mount.governs(early.0.pid())
    });
    assert_eq!(seen(&mount, &mut early), [0, 1]);
}

#[test]
fn nvml_lists_only_devices_of_the_group() {
    let mount = mount();
    group(&mount, "a", "1,3");
    let uuids = uuids(&mount);
    let mut nvml = Nvml::spawn(in_group(mount.command(nvml::program()), "a", None));
    assert_eq!(listed(&mount, &mut nvml), [1, 3]);
    assert!(!mount.governs(nvml.0.pid()), "it has not used CUDA");
    assert_eq!(nvml.0.ask("uuid 2 96"), format!("{INVALID_ARGUMENT} -"));
    assert_eq!(
        nvml.ask(&format!("by {}", uuids[3])),
        [SUCCESS, 1],
        "the index is that of the list"
    );
    assert_eq!(nvml.ask(&format!("by {}", uuids[2]))[0], NOT_FOUND);
    assert_eq!(nvml.ask("cuda"), [SUCCESS]);
    assert!(mount.governs(nvml.0.pid()));
    mount.write("a", "gcgroup.devices", "all");
    assert_eq!(
        listed(&mount, &mut nvml),
        [1, 3],
        "as the driver, which is initialised"
    );
    let mut other = Nvml::spawn(mount.command(nvml::program()));
    assert_eq!(listed(&mount, &mut other), [0, 1, 2, 3]);
}

/// Sends a topology command. Returns its result, the reported count, and the indices of the GPUs written.
#[track_caller]
fn topology(uuids: &[String], nvml: &mut Nvml, command: &str) -> (u64, u64, Vec<usize>) {
    let answer = nvml.0.ask(command);
    let mut words = answer.split(' ');
    let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
    let (result, count) = (number(), number());
    let place = |word| uuids.iter().position(|uuid| uuid == word).expect("a known GPU");
    (result, count, words.map(place).collect())
}

#[test]
fn nvml_topology_lists_only_devices_of_the_group() {
    let mount = mount();
    group(&mount, "a", "0,2,3");
    let uuids = uuids(&mount);
    let mut bare = Nvml::bare(&mount);
    let mut nvml = Nvml::spawn(in_group(mount.command(nvml::program()), "a", None));
    let mut ask = |command: &str| {
        let all = topology(&uuids, &mut bare, command);
        (all, topology(&uuids, &mut nvml, command))
    };
    let (all, own) = ask("cpu 0 0");
    assert_eq!(all, (SUCCESS, 4, vec![]), "only the number");
    assert_eq!(own, (SUCCESS, 3, vec![]));
    let (all, own) = ask("cpu 0 8");
    assert_eq!(all, (SUCCESS, 4, vec![0, 1, 2, 3]));
    assert_eq!(own, (SUCCESS, 3, vec![0, 2, 3]));
    // No more is written than there is room for.
    let (all, own) = ask("cpu 0 2");
    assert_eq!(all, (SUCCESS, 2, vec![0, 1]));
    assert_eq!(own, (SUCCESS, 2, vec![0, 2]));
    let (all, own) = ask("nearest 0 40 0");
    assert_eq!(all, (SUCCESS, 3, vec![]));
    assert_eq!(own, (SUCCESS, 2, vec![]));
    let (all, own) = ask("nearest 0 40 8");
    assert_eq!(all, (SUCCESS, 3, vec![1, 2, 3]));
    assert_eq!(own, (SUCCESS, 2, vec![2, 3]));
    let (all, own) = ask("nearest 0 10 8");
    assert_eq!((all, own), ((SUCCESS, 0, vec![]), (SUCCESS, 0, vec![])));
    for wrong in ["nearest 0 41 8", "nearest 0 40 8 null", "cpu 0 8 null"] {
        let (all, own) = ask(wrong);
        assert_eq!(all, (INVALID_ARGUMENT, 8, vec![]), "{wrong}");
        assert_eq!(own, all, "{wrong}");
    }
    // The second handle of the process is the third GPU.
    let nearest = topology(&uuids, &mut nvml, "nearest 1 40 8");
    assert_eq!(nearest, (SUCCESS, 2, vec![0, 3]));
}

#[test]
fn bad_list_is_refused_with_a_reason_and_changes_nothing() {
    let mount = mount();
    group(&mount, "a", "1");
    for bad in ["4", "GPU-nothing", "1,x", "all,1", " "] {
        let error = mount.try_write("a", "gcgroup.devices", bad).expect_err(bad);
        assert_eq!(error.raw_os_error(), Some(22), "{bad}");
        assert_eq!(mount.read("a", "gcgroup.devices"), "1");
    }
    let answer = mount
        .gcgroupfs(&["set", "a/gcgroup.devices", "7"])
        .output()
        .expect("gcgroupfs runs");
    let said = String::from_utf8_lossy(&answer.stderr);
    assert!(
        !answer.status.success() && said.contains("indices and UUIDs"),
        "{said}"
    );
}

#[test]
fn child_of_a_member_keeps_to_its_own_group() {
    let mount = mount();
    group(&mount, "a", "2,3");
    let mut command = in_group(mount.command("sh"), "a", None);
    command.arg("-c").arg("\"$0\"; exit").arg(program());
    let mut devices = Devices::spawn(command);
    devices.ok("init");
    assert_eq!(seen(&mount, &mut devices), [2, 3]);
    let environment = std::fs::read(format!("/proc/{}/environ", devices.0.pid())).expect("a process");
    assert!(!String::from_utf8_lossy(&environment).contains("CUDA_VISIBLE_DEVICES"));
}

#[test]
fn instances_are_listed_singly() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 2)
            .env("SIMGPU_MIG", "0:1g.5gb,2g.10gb"),
    );
    let uuids = uuids(&mount);
    assert!(
        uuids[1].starts_with("MIG-") && uuids[2].starts_with("GPU-"),
        "{uuids:?}"
    );
    group(&mount, "a", "1");
    let mut nvml = Nvml::spawn(in_group(mount.command(nvml::program()), "a", None));
    assert_eq!(nvml.ask("count"), [SUCCESS, 1], "the GPU of the instance");
    assert_eq!(nvml.ask(&format!("by {}", uuids[1]))[0], SUCCESS);
    for hidden in [&uuids[0], &uuids[2]] {
        assert_eq!(nvml.ask(&format!("by {hidden}"))[0], NOT_FOUND, "{hidden}");
    }
    let mut devices = cuda(&mount, "a", Some("0"));
    devices.ok("init");
    assert_eq!(devices.ok("count"), 1);
    let instance = uuids[1][4..].replace('-', "");
    assert_eq!(devices.0.ask("uuid 0"), format!("0 {instance}"));
    let mut other = cuda(&mount, "a", Some("1"));
    assert_eq!(other.ask("init"), [NO_DEVICE]);
}

#[test]
fn missing_daemon_shows_all_devices() {
    let mut mount = mount();
    group(&mount, "a", "1");
    mount.stop();
    let mut nvml = Nvml::spawn(in_group(mount.command(nvml::program()), "a", None));
    assert_eq!(nvml.ask("count"), [SUCCESS, 4]);
}
