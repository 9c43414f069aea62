//! Real clients of the driver, unmodified: each sees its cap as the card's memory, and meets it.

use std::process::Command;

use support::{Governed, Mount, python, repository};

use crate::driver::Dir;

const MIB: u64 = 1 << 20;

#[track_caller]
fn client(mount: &Mount, script: &str, arguments: &[&str]) -> Governed {
    let mut command: Command = mount.command(python());
    command
        .arg(repository().join("tests/clients").join(script))
        .args(arguments);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let mut client = Governed::spawn(command);
    client.expect("ready");
    client
}

#[track_caller]
fn is_governed(script: &str) {
    let mount = Mount::new();
    let mut client = client(&mount, script, &[]);
    let dir = Dir::of(&mount, client.pid());
    let limit = dir.number("memory.current") + 256 * MIB;
    dir.write("memory.limit", limit);
    for total in client.ask("total").split(' ') {
        assert_eq!(total, limit.to_string(), "the cap is the card's memory");
    }
    let launched = dir.launches();
    assert_eq!(client.ask("launch 10"), "ok");
    assert_eq!(dir.launches(), launched + 10, "every launch is counted");
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
        "freed memory can be had again"
    );
    client.finish();
}

#[test]
fn cuda_bindings_is_governed() {
    is_governed("bindings.py");
}

#[test]
fn cuda_core_is_governed() {
    is_governed("core_client.py");
}

#[test]
fn numba_cuda_is_governed() {
    is_governed("numba_client.py");
}

#[test]
fn nvidia_ml_py_shows_a_governed_process_its_limit_and_everybody_else_the_card() {
    let mount = Mount::new();
    let mut monitor = client(&mount, "nvml_client.py", &[]);
    let mut governed = client(&mount, "nvml_client.py", &["cuda"]);
    let card = monitor.ask("");
    let dir = Dir::of(&mount, governed.pid());
    dir.write("memory.limit", 512 * MIB);
    assert_eq!(
        governed.ask(""),
        format!("{} {}", 512 * MIB, dir.number("memory.current"))
    );
    assert_eq!(monitor.ask("").split(' ').next(), card.split(' ').next());
    assert!(!Dir::of(&mount, monitor.pid()).exists(), "watching is not using");
}
