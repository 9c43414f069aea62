//! Tests green contexts: their memory is charged to the primary context, and their work is counted, held and
//! measured as usual.

use std::os::unix::fs::FileExt as _;

use support::{Mount, wait_until};

use crate::contended::{program, share_word};
use crate::driver::Dir;
use crate::simgpu::Program;

const MIB: u64 = 1 << 20;
/// Default priority of a process.
const USUAL: u32 = 8;

/// Starts a program with a green context `green`, its driver context `view`, and a stream on it.
fn with_green(mount: &Mount) -> Program {
    let mut program = program(mount, USUAL);
    let shared = mount.simgpu_dir().join("word");
    std::fs::write(&shared, [0; 4096]).expect("a page");
    share_word(&mut program, &shared);
    program.run(
        "green, view = green_of(16)
         stream = got(c_uint64, 'cuGreenCtxStreamCreate', green, 1, 0)
         word = c_uint.from_address(flag)
         def hold(stream): ok(cu.cuStreamWaitValue32_v2(stream, flag, 1, 0))",
    );
    program
}

/// Writes the word that held streams wait for. The file keeps its length because it is mapped.
fn let_go(mount: &Mount) {
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(mount.simgpu_dir().join("word"));
    let written = file.and_then(|file| file.write_at(&1_u32.to_le_bytes(), 0));
    assert_eq!(written.expect("the word"), 4);
}

#[test]
fn green_context_memory_lives_until_primary_context_ends() {
    let mount = Mount::new();
    let truth = mount.truth();
    for end in [
        "cu.cuDevicePrimaryCtxReset_v2(0)",
        "cu.cuDevicePrimaryCtxReset(0)",
        "cu.cuDevicePrimaryCtxRelease_v2(0)",
    ] {
        let mut program = with_green(&mount);
        let dir = Dir::of(&mount, program.pid());
        let linear = || dir.key("memory.stat", "linear");
        program.run(&format!(
            "ok(cu.cuCtxSetCurrent(view))
             address = alloc({})
             ok(cu.cuMemFree_v2(alloc({MIB})))",
            3 * MIB
        ));
        assert_eq!(linear(), 3 * MIB, "{end}");
        program.calls(0, "cu.cuGreenCtxDestroy(green)\ncu.cuCtxSetCurrent(context)");
        assert_eq!(linear(), 3 * MIB, "{end}: the primary context lost its memory");
        assert_eq!(truth.held(program.pid(), 0, simgpu::Held::Linear), 3 * MIB);
        program.run(&format!(
            "other, view = green_of(16)\nok(cu.cuCtxSetCurrent(view))\naddress = alloc({MIB})"
        ));
        if end.contains("Release") {
            program.calls(0, end);
            assert_eq!(
                linear(),
                4 * MIB,
                "the other green context lost the primary context"
            );
            program.calls(0, "cu.cuGreenCtxDestroy(other)");
        } else {
            program.calls(0, end);
            program.calls(709, "cu.cuGreenCtxDestroy(other)");
        }
        assert_eq!(linear(), 0, "{end}");
        assert_eq!(truth.held(program.pid(), 0, simgpu::Held::Linear), 0, "{end}");
    }
}

#[test]
fn memory_freed_on_green_stream_is_charged_until_its_work_ends() {
    let mount = Mount::new();
    let mut program = with_green(&mount);
    let dir = Dir::of(&mount, program.pid());
    let before = dir.key("memory.stat", "linear");
    program.run(&format!(
        "hold(stream)
         ok(cu.cuCtxSetCurrent(context))
         ok(cu.cuMemFreeAsync(alloc({MIB}), stream))"
    ));
    program.calls(0, "cu.cuGreenCtxDestroy(green)");
    let linear = || dir.key("memory.stat", "linear");
    let held = || mount.truth().held(program.pid(), 0, simgpu::Held::Linear);
    assert_eq!((linear(), held()), (before + MIB, before + MIB));
    let_go(&mount);
    wait_until("the memory is uncharged", || linear() == before);
    assert_eq!(held(), before);
}

#[test]
fn limit_holds_in_green_context_that_made_the_primary() {
    let mount = Mount::new();
    let mut program = program(&mount, USUAL);
    program.run(
        "ok(cu.cuDevicePrimaryCtxReset_v2(0))
         green, view = green_of(16)
         ok(cu.cuCtxSetCurrent(view))",
    );
    let dir = Dir::of(&mount, program.pid());
    let linear = || dir.key("memory.stat", "linear");
    program.run(&format!("address = alloc({MIB})"));
    dir.write("memory.limit", dir.number("memory.current") + MIB);
    assert_eq!(program.ask(&format!("alloc({})", 4 * MIB)), "'error 2'");
    assert_eq!(linear(), MIB);
    program.calls(0, "cu.cuGreenCtxDestroy(green)");
    assert_eq!(linear(), 0, "destroying the green context kept its memory");
}

#[test]
fn freeze_holds_and_drains_streams_of_green_contexts() {
    let mount = Mount::new();
    for stream in ["stream", "blocking", "0", "late"] {
        let mut program = with_green(&mount);
        let dir = Dir::of(&mount, program.pid());
        program.run(
            "bare, bare_view = green_of(16, flags=0)
             ok(cu.cuCtxSetCurrent(view))
             blocking, late = got(c_uint64, 'cuStreamCreate', 0), got(c_uint64, 'cuGreenCtxStreamCreate', green, 1, 0)",
        );
        program.run(&format!("hold({stream})"));
        if stream == "late" {
            program.calls(0, "cu.cuCtxSetCurrent(context)\ncu.cuGreenCtxDestroy(green)");
        }
        let launches = dir.launches();
        dir.write("compute.freeze", 1);
        program.0.say(&format!(
            "launch(spin, 0, stream={})",
            if stream == "late" { "0" } else { stream }
        ));
        wait_until("the launch waits at the gate", || {
            dir.key("compute.stat", "nr_frozen") == 1
        });
        // The helper thread has checked by now: it checks before and after it reports a waiting submission.
        for _ in 0..50 {
            assert!(
                !dir.is_frozen(),
                "{stream}: the process is frozen before its work has ended"
            );
        }
        let_go(&mount);
        wait_until("the process is frozen and drained", || dir.is_frozen());
        assert_eq!(program.0.line_now(), None, "{stream}");
        assert_eq!(dir.launches(), launches, "{stream}");
        dir.write("compute.freeze", 0);
        assert_eq!(program.0.line().as_deref(), Some("0"), "{stream}");
        assert_eq!(dir.launches(), launches + 1, "{stream}");
    }
}

#[test]
fn freeze_drains_green_stream_made_without_a_context() {
    let mount = Mount::new();
    let mut program = with_green(&mount);
    let dir = Dir::of(&mount, program.pid());
    program.run(
        "ok(cu.cuCtxSetCurrent(0))
         lone = got(c_uint64, 'cuGreenCtxStreamCreate', green, 1, 0)
         ok(cu.cuCtxSetCurrent(context))
         hold(lone)",
    );
    dir.write("compute.freeze", 1);
    program.0.say("launch(spin, 0)");
    wait_until("the launch waits at the gate", || {
        dir.key("compute.stat", "nr_frozen") == 1
    });
    for _ in 0..50 {
        assert!(
            !dir.is_frozen(),
            "the process is frozen before its work has ended"
        );
    }
    let_go(&mount);
    wait_until("the process is frozen and drained", || dir.is_frozen());
    dir.write("compute.freeze", 0);
    assert_eq!(program.0.line().as_deref(), Some("0"));
}

#[test]
fn free_on_green_default_stream_uncharges_when_done() {
    let mount = Mount::new();
    for wait in [
        "cu.cuStreamSynchronize(0)",
        "cu.cuCtxSynchronize()",
        "cu.cuCtxSetCurrent(context) or cu.cuCtxSynchronize()",
    ] {
        let mut program = with_green(&mount);
        let dir = Dir::of(&mount, program.pid());
        let linear = || dir.key("memory.stat", "linear");
        program.run(&format!(
            "ok(cu.cuCtxSetCurrent(view))\nhold(0)\nok(cu.cuMemFreeAsync(alloc({MIB}), 0))"
        ));
        for _ in 0..100 {
            assert_eq!(
                linear(),
                MIB,
                "{wait}: the block was uncharged before the stream reached its free"
            );
        }
        let_go(&mount);
        program.calls(0, wait);
        assert_eq!(linear(), 0, "{wait}");
    }
}

#[test]
fn green_stream_work_is_measured_in_any_current_context() {
    let mount = Mount::new();
    for current in ["context", "view"] {
        let mut program = with_green(&mount);
        let dir = Dir::of(&mount, program.pid());
        let usage = || dir.key("compute.stat", "usage_usec");
        program.run(&format!("ok(cu.cuCtxSetCurrent({current}))"));
        // Usage is measured from here on.
        usage();
        let truth = mount.truth();
        let mut had = 0;
        wait_until("nine tenths of the GPU time are charged", || {
            program.run("ok(launch(spin, 30000, stream=stream))\nok(cu.cuStreamSynchronize(stream))");
            had += 30_000;
            let (told, really) = (usage(), truth.usage_usec(program.pid(), 0));
            assert!(really >= had);
            told * 10 >= really * 9
        });
    }
}
