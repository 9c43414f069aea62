//! Tests real, unmodified clients of the driver: each sees its limit as the GPU's memory and is held to it.

use std::process::Command;

use support::{Governed, Mount, python, repository};

use crate::driver::Dir;

const MIB: u64 = 1 << 20;

/// Starts a Python client from `tests/clients`.
#[track_caller]
pub(crate) fn python_client(mount: &Mount, script: &str, arguments: &[&str]) -> Governed {
    let mut command = mount.command(python());
    command
        .arg(repository().join("tests/clients").join(script))
        .args(arguments);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    ready(command)
}

#[track_caller]
fn ready(command: Command) -> Governed {
    let mut client = Governed::spawn(command);
    client.expect("ready");
    client
}

#[track_caller]
fn is_governed(mount: &Mount, mut client: Governed) {
    let dir = Dir::of(mount, client.pid());
    let limit = dir.number("memory.current") + 256 * MIB;
    dir.write("memory.limit", limit);
    for total in client.ask("total").split(' ') {
        assert_eq!(total, limit.to_string(), "the shown total is not the limit");
    }
    let launched = dir.launches();
    assert_eq!(client.ask("launch 10"), "ok");
    assert_eq!(dir.launches(), launched + 10, "some launches were not counted");
    assert_eq!(client.ask(&format!("alloc {}", 128 * MIB)), "ok");
    assert!(dir.number("memory.current") >= 128 * MIB);
    assert_eq!(
        client.ask(&format!("alloc {}", 256 * MIB)),
        "CUDA_ERROR_OUT_OF_MEMORY"
    );
    assert!(dir.number("memory.current") <= limit);
    assert!(dir.key("memory.events", "oom") >= 1);
    assert_eq!(client.ask("free"), "ok");
    assert_eq!(
        client.ask(&format!("alloc {}", 200 * MIB)),
        "ok",
        "freed memory cannot be allocated again"
    );
    client.finish();
}

#[test]
fn cuda_bindings_is_governed() {
    let mount = Mount::new();
    is_governed(&mount, python_client(&mount, "bindings.py", &[]));
}

#[test]
fn cuda_core_is_governed() {
    let mount = Mount::new();
    is_governed(&mount, python_client(&mount, "core_client.py", &[]));
}

#[test]
fn numba_cuda_is_governed() {
    let mount = Mount::new();
    is_governed(&mount, python_client(&mount, "numba_client.py", &[]));
}

#[test]
fn cudarc_is_governed() {
    let mount = Mount::new();
    is_governed(&mount, ready(mount.command(env!("CARGO_BIN_EXE_cudarc_client"))));
}
