//! Tests three orders of devices that are matched by UUID: those of the program, the daemon and NVML.

use support::{Config, Mount, wait_until};

use super::{Devices, MIB, NO_DEVICE, charged, gpus, ledger, program, uuids};
use crate::driver::Dir;

#[test]
fn devices_are_matched_in_any_visible_order() {
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
                // A different size on each device, so that a wrong charge is noticed.
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
fn daemon_lists_all_devices_despite_visible_devices() {
    let all = uuids(&gpus(3));
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 3)
            .env("CUDA_VISIBLE_DEVICES", "2,1"),
    );
    assert_eq!(uuids(&mount), all);
    let mut devices = Devices::on(&mount, 2);
    devices.ok(&format!("alloc {MIB}"));
    assert_eq!(ledger(&Dir::of(&mount, devices.0.pid()), 3), [0, MIB, 0]);
}

#[test]
fn process_without_visible_device_is_not_governed() {
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
fn unknown_devices_are_charged_to_the_whole_process() {
    let mount = gpus(1);
    // The first GPU is the same; two more exist only for this program.
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
    dir.freeze();
    devices.0.say("spin 1 null");
    wait_until("the launch on an unknown device waits at the gate", || {
        dir.key("compute.stat", "nr_frozen") == 1
    });
    dir.write("compute.freeze", 0);
    assert_eq!(devices.0.line().as_deref(), Some("0"));
}

#[test]
fn later_daemon_charges_newly_known_devices() {
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
    std::fs::remove_dir_all(mount.simgpu_dir()).expect("the machine can be removed");
    std::fs::create_dir(mount.simgpu_dir()).expect("the directory can be created");
    // The first process to attach creates the machine.
    let mut command = mount.bare_command(program());
    command.env("SIMGPU_DEVICES", "3");
    let mut first = Devices::spawn(command);
    first.ok("init");
    mount.restart();
    wait_until("the process has registered again", || mount.governs(pid));
    let dir = Dir::of(&mount, pid);
    wait_until("the charges have moved to their devices", || {
        charged(&dir, 3) == [0, 2 * MIB, 4 * MIB]
    });
    assert_eq!(dir.number("memory.current"), 6 * MIB);
    dir.gpu(1).write("memory.limit", 3 * MIB);
    devices.refused(&format!("alloc {}", MIB + 1));
    devices.ok(&format!("alloc {MIB}"));
}
