//! Tests that a process which the driver cannot move is refused before anything changes, and that a refusal
//! which only the driver knows is rolled back.

use support::{Config, Mount, wait_until};

use crate::calls::Calls;
use crate::driver::{Dir, DriverShell, driver_shell};
use crate::suspend::{is_running, resume, suspend};

const MIB: u64 = 1 << 20;

/// A driver that moves processes, but no memory that they share.
fn config() -> Config {
    Config::default().env("SIMGPU_DRIVER", "12.8")
}

/// Asserts that a process is refused with a reason, and that nothing has changed.
#[track_caller]
fn is_refused(mount: &Mount, pid: i32, reason: &str) {
    let before = mount.read(pid, "gcgroup.events");
    let error = mount
        .try_write(pid, "gcgroup.suspend", "1")
        .expect_err("the driver cannot move it");
    assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{reason}");
    let told = mount.gcgroupfs(&["suspend", &pid.to_string()]).output();
    let told = told.expect("it runs");
    assert_eq!(told.status.code(), Some(1));
    let text = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(text.contains(reason), "{text}");
    assert_eq!(mount.read(pid, "gcgroup.suspend"), "0");
    assert_eq!(mount.read(pid, "gcgroup.events"), before);
    assert!(is_running(mount, pid));
}

/// Asserts that a process can be suspended and resumed.
#[track_caller]
fn is_movable(mount: &Mount, pid: i32) {
    suspend(mount, pid);
    resume(mount, pid);
}

#[test]
fn process_with_exported_or_opened_memory_is_refused_until_freed() {
    let mount = Mount::with(config());
    let (mut maker, mut taker) = (Calls::start(&mount), Calls::start(&mount));
    for name in ["block", "other"] {
        maker.ok(&format!("cuMemAlloc_v2 &{name} {MIB}"));
    }
    is_movable(&mount, maker.pid());
    for _ in 0..2 {
        maker.ok("cuIpcGetMemHandle &handle $block");
    }
    is_refused(&mount, maker.pid(), "CUDA IPC");
    maker.ok("cuMemFree_v2 $other");
    is_refused(&mount, maker.pid(), "CUDA IPC");
    let handle = maker.show("handle", 64);
    taker.fill("handle", &handle);
    is_movable(&mount, taker.pid());
    taker.ok("cuIpcOpenMemHandle_v2 &opened 1 *handle");
    is_refused(&mount, taker.pid(), "CUDA IPC");
    taker.ok("cuIpcCloseMemHandle $opened");
    is_movable(&mount, taker.pid());
    taker.ok("cuIpcOpenMemHandle_v2 &opened 1 *handle");
    taker.ok("cuDevicePrimaryCtxReset_v2 0");
    is_movable(&mount, taker.pid());
    maker.ok("cuMemFree_v2 $block");
    is_movable(&mount, maker.pid());
}

#[test]
fn process_with_shared_physical_memory_is_refused_until_released() {
    let mount = Mount::with(config());
    let (mut maker, mut taker) = (Calls::start(&mount), Calls::start(&mount));
    // Pinned memory of device 0, shareable as a descriptor.
    for offset in [0, 4, 8] {
        maker.put("properties", offset, 4, 1);
    }
    maker.put("properties", 12, 4, 0);
    maker.ok(&format!("cuMemCreate &handle {} &properties 0", 2 * MIB));
    is_movable(&mount, maker.pid());
    maker.ok("cuMemExportToShareableHandle &descriptor $handle 1 0");
    is_refused(&mount, maker.pid(), "CUDA IPC");
    let descriptor = maker.ask("get descriptor 0 4");
    let descriptor = taker.take_descriptor(&maker, &descriptor);
    taker.ok(&format!("cuMemImportFromShareableHandle &handle {descriptor} 1"));
    is_refused(&mount, taker.pid(), "CUDA IPC");
    taker.ok("cuMemRelease $handle");
    is_movable(&mount, taker.pid());
    maker.ok("cuMemRelease $handle");
    is_movable(&mount, maker.pid());
}

#[test]
fn process_with_a_shared_pool_is_refused_until_destroyed() {
    let mount = Mount::with(config());
    let (mut maker, mut taker) = (Calls::start(&mount), Calls::start(&mount));
    // A pinned pool of device 0, shareable as a descriptor.
    for offset in [0, 4, 8] {
        maker.put("properties", offset, 4, 1);
    }
    maker.put("properties", 12, 4, 0);
    maker.ok("cuMemPoolCreate &pool &properties");
    maker.ok(&format!("cuMemAllocFromPoolAsync &block {MIB} $pool 0"));
    is_movable(&mount, maker.pid());
    maker.ok("cuMemPoolExportToShareableHandle &descriptor $pool 1 0");
    is_refused(&mount, maker.pid(), "CUDA IPC");
    let descriptor = maker.ask("get descriptor 0 4");
    let descriptor = taker.take_descriptor(&maker, &descriptor);
    taker.ok(&format!(
        "cuMemPoolImportFromShareableHandle &pool {descriptor} 1 0"
    ));
    is_refused(&mount, taker.pid(), "CUDA IPC");
    taker.ok("cuMemPoolDestroy $pool");
    is_movable(&mount, taker.pid());
    maker.ok("cuMemPoolDestroy $pool");
    is_refused(&mount, maker.pid(), "CUDA IPC");
    maker.ok("cuMemFreeAsync $block 0");
    maker.ok("cuStreamSynchronize 0");
    is_movable(&mount, maker.pid());
}

#[test]
fn process_that_shares_memory_moves_with_a_newer_driver() {
    let mount = Mount::new();
    let mut maker = Calls::start(&mount);
    maker.ok(&format!("cuMemAlloc_v2 &block {MIB}"));
    maker.ok("cuIpcGetMemHandle &handle $block");
    is_movable(&mount, maker.pid());
}

#[test]
fn client_of_mps_is_refused_and_fails_alone_in_its_group() {
    let mount = Mount::new();
    let mut command = mount.command(driver_shell());
    command.env("SIMGPU_MPS", "1");
    let mut client = DriverShell::spawn(command);
    let mut other = mount.obedient();
    assert!(other.ask("alloc linear 4096").starts_with("allocated "));
    is_refused(&mount, client.pid(), "MPS");
    assert_eq!(client.ask("spin 5 1"), "ok");
    std::fs::create_dir(mount.path().join("team")).expect("root may make groups");
    for pid in [client.pid(), other.pid()] {
        mount.write("team", "gcgroup.procs", &pid.to_string());
    }
    mount.write("team", "gcgroup.suspend", "1");
    wait_until("the client is refused, and the other is suspended", || {
        mount
            .read(client.pid(), "gcgroup.events")
            .contains("suspend_error check")
            && mount
                .read(other.pid(), "gcgroup.events")
                .contains("suspended 1\n")
    });
    assert!(is_running(&mount, client.pid()), "it was never frozen");
    let explained = mount.gcgroupfs(&["explain", &client.pid().to_string()]).output();
    let text = String::from_utf8_lossy(&explained.expect("it runs").stdout).into_owned();
    assert!(text.contains("MPS"), "{text}");
    mount.write("team", "gcgroup.suspend", "0");
    wait_until("the other is resumed", || is_running(&mount, other.pid()));
}

#[test]
fn refusal_of_the_driver_at_the_lock_is_rolled_back() {
    let mount = Mount::with(Config::default().env("SIMGPU_FAULTS", "cuCheckpointProcessLock=801"));
    let mut shell = DriverShell::start(&mount);
    mount.write(shell.pid(), "gcgroup.suspend", "1");
    wait_until("the refusal is reported", || {
        mount
            .read(shell.pid(), "gcgroup.events")
            .contains("suspend_error lock")
    });
    assert_eq!(shell.ask("spin 5 1"), "ok", "it has been unlocked and thawed");
    assert!(is_running(&mount, shell.pid()));
    assert!(Dir::of(&mount, shell.pid()).exists());
}
