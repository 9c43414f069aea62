//! Tests freezing: no work starts after `frozen 1`, all work resumes after a thaw, and no thread hangs.

use std::os::unix::process::ExitStatusExt as _;

use support::{Config, Mount, wait_until};

use crate::contended::program;
use crate::driver::{Dir, DriverShell};

#[test]
fn no_kernel_starts_after_frozen_1_until_thaw() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(shell.ask("spin 100 20"), "ok");
    dir.freeze();
    assert_eq!(dir.launches(), 20);
    shell.tell("spin 100 5");
    wait_until("the launch waits at the gate", || {
        dir.key("compute.stat", "nr_frozen") >= 1
    });
    assert_eq!(dir.launches(), 20, "a launch passed the closed gate");
    assert!(dir.is_frozen(), "a waiting launch thawed the process");
    dir.write("compute.freeze", 0);
    assert_eq!(shell.answer(), "ok");
    assert_eq!(shell.ask("sync"), "ok");
    assert_eq!(dir.launches(), 25);
    assert!(!dir.is_frozen());
}

#[test]
fn frozen_is_not_reported_while_a_kernel_runs() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    // Half a second of queued work, far longer than a few file reads take.
    assert_eq!(shell.ask("spin 10000 50"), "ok");
    assert_eq!(shell.ask("mark"), "ok");
    dir.write("compute.freeze", 1);
    let mut seen_running = false;
    wait_until("the process is frozen and drained", || {
        let drained = dir.is_frozen();
        // Queried after reading the file, so a reported drain must be complete by now.
        let idle = shell.ask("marked") == "ok";
        assert!(!drained || idle, "the process is frozen while kernels run");
        seen_running |= !idle;
        drained
    });
    assert!(seen_running, "the work had drained before the first query");
}

/// Each kind of work that is not a plain launch: its name, what prepares it, what submits 20 kernels of 5 ms.
const UNUSUAL: [(&str, &str, &str); 7] = [
    ("graph", "", "cu.cuGraphLaunch(executable, 0)"),
    (
        "graph on a stream that waits for no other",
        "",
        "cu.cuGraphLaunch(executable, apart)",
    ),
    (
        "graph on the thread's default stream",
        "",
        "cu.cuGraphLaunch(executable, 2)",
    ),
    (
        "graph in a graph",
        "outer = graph_of()
         ok(cu.cuGraphAddChildGraphNode(numbers(1), outer, None, 0, graph))
         executable = got(c_uint64, 'cuGraphInstantiateWithFlags', outer, 0)",
        "cu.cuGraphLaunch(executable, 0)",
    ),
    (
        "cooperative launch",
        "",
        "max(together(apart) for _ in range(20))",
    ),
    (
        "cooperative launch on the thread's default stream",
        "",
        "max(together(2) for _ in range(20))",
    ),
    (
        "green context",
        "green, view = green_of(16)
         part = got(c_uint64, 'cuGreenCtxStreamCreate', green, 1, 0)",
        "cu.cuGraphLaunch(executable, part)",
    ),
];

#[test]
fn frozen_is_not_reported_while_unusual_work_runs() {
    let mount = Mount::new();
    let truth = mount.truth();
    for (what, prepare, submit) in UNUSUAL {
        let mut program = program(&mount, 8);
        let dir = Dir::of(&mount, program.pid());
        program.run(
            "apart = got(c_uint64, 'cuStreamCreate', 1)
             graph, node = graph_of(), kernel_node(spin, 5000)
             nodes = [got(c_uint64, 'cuGraphAddKernelNode', graph, None, 0, node) for _ in range(20)]
             executable = got(c_uint64, 'cuGraphInstantiateWithFlags', graph, 0)
             usec = c_uint64(5000)
             list = (c_void_p * 1)(ctypes.addressof(usec))
             together = lambda stream: cu.cuLaunchCooperativeKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, list)",
        );
        program.run(prepare);
        program.calls(0, submit);
        dir.write("compute.freeze", 1);
        wait_until("the process is frozen", || dir.is_frozen());
        let ran = truth.usage_usec(program.pid(), 0);
        assert!(ran >= 100_000, "{what}: frozen after {ran} of 100 000 usec");
        dir.write("compute.freeze", 0);
    }
}

#[test]
fn thaw_during_drain_cancels_the_freeze() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(shell.ask("spin 10000 20"), "ok");
    dir.write("compute.freeze", 1);
    dir.write("compute.freeze", 0);
    assert_eq!(shell.ask("spin 10 1"), "ok");
    assert!(!dir.is_frozen());
    dir.freeze();
}

#[test]
fn sigterm_ends_a_frozen_process() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    dir.freeze();
    shell.tell("spin 1 1");
    wait_until("the launch waits at the gate", || {
        dir.key("compute.stat", "nr_frozen") >= 1
    });
    assert_eq!(shell.terminate().signal(), Some(libc::SIGTERM));
    wait_until("the process's directory is removed", || !dir.exists());
}

#[test]
fn freezing_one_device_leaves_the_other_running() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    dir.gpu(0).freeze();
    assert!(!dir.is_frozen(), "the whole process is frozen");
    assert_eq!(shell.ask("gpu 1"), "ok");
    assert_eq!(shell.ask("spin 10 3"), "ok");
    assert_eq!(dir.gpu(1).launches(), 3);
    assert_eq!(shell.ask("gpu 0"), "ok");
    shell.tell("spin 10 1");
    wait_until("the launch waits at device 0's gate", || {
        dir.key("compute.stat", "nr_frozen") >= 1
    });
    dir.gpu(0).write("compute.freeze", 0);
    assert_eq!(shell.answer(), "ok");
}

#[test]
fn memory_can_be_allocated_and_freed_while_frozen() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    dir.freeze();
    assert_eq!(shell.ask("alloc linear 4096"), "ok 0");
    assert_eq!(shell.ask("free 0"), "ok");
    assert_eq!(shell.ask("sync"), "ok");
}

#[test]
fn continuously_launching_threads_all_freeze_and_resume() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let (threads, each) = (16, 4000);
    shell.tell(&format!("busy {threads} {each}"));
    for round in 1..=10 {
        wait_until("each thread has launched kernels", || dir.launches() > 16 * round);
        dir.freeze();
        let stopped = dir.launches();
        for _ in 0..100 {
            assert!(
                dir.is_frozen() && dir.launches() == stopped,
                "a kernel started while frozen"
            );
        }
        dir.write("compute.freeze", 0);
    }
    assert_eq!(shell.answer(), "ok");
    assert_eq!(
        dir.launches(),
        threads * each,
        "a launch was lost or counted twice"
    );
}

#[test]
fn child_of_a_frozen_process_is_not_frozen() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    dir.freeze();
    shell.tell("fork");
    let (mut child, mut parent) = (None, false);
    for _ in 0..2 {
        match shell.answer().split_once(' ') {
            Some(("child", pid)) => child = pid.parse::<i32>().ok(),
            Some(("parent", _)) => parent = true,
            other => panic!("{other:?}"),
        }
    }
    assert!(parent);
    // The driver returns an error to the child of an initialised process; the child must get an answer.
    assert!(
        shell.ask("spin 1 1").starts_with("error"),
        "the child waits at its parent's gate"
    );
    assert!(
        !Dir::of(&mount, child.expect("a pid")).exists(),
        "the child is governed as its parent"
    );
    assert!(dir.is_frozen(), "the fork thawed the parent");
    shell.quit();
    wait_until("the process's directory is removed", || !dir.exists());
}

#[test]
fn frozen_process_may_exit() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    shell.ask("spin 100 5");
    dir.freeze();
    shell.quit();
    wait_until("the process's directory is removed", || !dir.exists());
}

#[test]
fn freezes_during_execs_leave_no_process_stuck() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    shell.ask("spin 10 4");
    for round in 0..10 {
        let dir = Dir::of(&mount, shell.pid());
        dir.write("compute.freeze", 1);
        wait_until("the process is frozen and drained", || dir.is_frozen());
        dir.write("compute.freeze", 0);
        shell.exec_at(&mount);
        assert_eq!(shell.ask("spin 10 4"), "ok", "round {round}");
    }
}

#[test]
fn daemon_option_decides_whether_freeze_outlives_it() {
    let grace = Config::default().arg("--grace").arg("200");
    let mut mounts = [
        Mount::with(grace.clone()),
        Mount::with(grace.arg("--on-daemon-loss").arg("hold")),
    ];
    let [mut open, mut hold] = mounts.each_ref().map(DriverShell::start);
    for (mount, shell) in mounts.iter().zip([&mut open, &mut hold]) {
        Dir::of(mount, shell.pid()).write("compute.freeze", 1);
        shell.tell("spin 100 1");
        let dir = Dir::of(mount, shell.pid());
        wait_until("the launch waits at the gate", || {
            dir.key("compute.stat", "nr_frozen") > 0
        });
    }
    // The daemon of the process that stays frozen is killed first.
    mounts[1].kill9();
    mounts[0].kill9();
    assert_eq!(open.answer(), "ok");
    mounts[1].restart();
    wait_until("the frozen process has registered again", || {
        mounts[1].governs(hold.pid())
    });
    let dir = Dir::of(&mounts[1], hold.pid());
    assert_eq!(dir.key("compute.stat", "nr_launches"), 0);
    dir.write("compute.freeze", 0);
    assert_eq!(hold.answer(), "ok");
}
