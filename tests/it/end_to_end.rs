//! Tests a complete user session: a process appears, is counted, limited, frozen, thawed and exits.

use support::{Mount, wait_until};

#[test]
fn process_appears_with_first_cuda_use_until_exit() {
    let mount = Mount::new();
    let mut process = mount.obedient();
    let pid = process.pid();
    wait_until("the process's directory appears", || mount.governs(pid));
    assert!(mount.path().join(format!("{pid}/0/memory.current")).exists());
    assert_eq!(mount.read(".", "gcgroup.procs"), pid.to_string());

    process.say("quit");
    process.finish();
    wait_until("the process's directory is removed", || !mount.governs(pid));
    assert_eq!(mount.read(".", "gcgroup.procs"), "");
    let exited = mount.read(".", "exited");
    assert!(exited.contains(&pid.to_string()));
}

#[test]
fn memory_current_follows_allocations_and_frees() {
    let mount = Mount::new();
    let mut process = mount.obedient();
    let pid = process.pid();
    let before = mount.number(pid, "memory.current", "");
    assert_eq!(process.ask("alloc linear 64M"), "allocated 1 linear 67108864");
    assert_eq!(mount.number(pid, "memory.current", "") - before, 64 << 20);
    assert_eq!(
        mount.number(format!("{pid}/0"), "memory.current", "") - before,
        64 << 20
    );
    assert_eq!(mount.number(pid, "memory.stat", "linear"), 64 << 20);
    assert_eq!(process.ask("verify"), "verified 1");
    assert_eq!(process.ask("free 1"), "freed 1");
    assert_eq!(mount.number(pid, "memory.current", ""), before);
    assert_eq!(mount.number(pid, "memory.peak", "") - before, 64 << 20);
}

#[test]
fn memory_limit_refuses_first_byte_beyond() {
    let mount = Mount::new();
    let mut process = mount.obedient();
    let pid = process.pid();
    let current = mount.number(pid, "memory.current", "");
    mount.write(pid, "memory.limit", &(current + (1 << 20)).to_string());
    assert_eq!(
        process.ask("alloc linear 1048577"),
        "refused CUDA_ERROR_OUT_OF_MEMORY"
    );
    assert_eq!(process.ask("alloc linear 1048576"), "allocated 1 linear 1048576");
    assert_eq!(process.ask("alloc linear 1"), "refused CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(mount.number(pid, "memory.events", "oom"), 2);

    mount.write(pid, "memory.limit", "max");
    assert_eq!(process.ask("alloc linear 1"), "allocated 2 linear 1");
}

#[test]
fn launches_are_counted_one_by_one() {
    let mount = Mount::new();
    let mut process = mount.obedient();
    let pid = process.pid();
    let before = mount.number(pid, "gcgroup.stat", "nr_submitted_kernels");
    assert_eq!(process.ask("launch 37"), "launched 37");
    assert_eq!(process.ask("sync"), "synchronised");
    assert_eq!(
        mount.number(pid, "gcgroup.stat", "nr_submitted_kernels") - before,
        37
    );
}

#[test]
fn frozen_process_launches_only_after_thaw() {
    let mount = Mount::new();
    let mut process = mount.obedient();
    let pid = process.pid();
    assert_eq!(process.ask("launch 1"), "launched 1");
    mount.write(pid, "compute.freeze", "1");
    wait_until("the process is frozen and drained", || {
        mount.number(pid, "gcgroup.events", "frozen") == 1
    });
    let launches = || mount.number(pid, "gcgroup.stat", "nr_submitted_kernels");
    let before = launches();

    process.say("launch 3");
    wait_until("the launch waits at the gate", || {
        mount.number(pid, "compute.stat", "nr_frozen") > 0
    });
    assert_eq!(launches(), before);
    assert_eq!(process.line_now(), None);

    mount.write(pid, "compute.freeze", "0");
    assert_eq!(process.line(), Some("launched 3".to_owned()));
    assert_eq!(launches(), before + 3);
    assert_eq!(mount.number(pid, "gcgroup.events", "frozen"), 0);
}

#[test]
fn priority_is_stored_and_shown() {
    let mount = Mount::new();
    let process = mount.obedient();
    let pid = process.pid();
    assert_eq!(mount.read(pid, "compute.priority"), "8");
    mount.write(pid, "compute.priority", "2");
    assert_eq!(mount.read(pid, "compute.priority"), "2");
    let refused = mount.try_write(pid, "compute.priority", "16").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ERANGE));
    assert_eq!(mount.read(pid, "compute.priority"), "2");
}
