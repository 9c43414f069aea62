//! Tests memory that is released without a call to free it: with its context, by a reset, by a failing call.

use support::{Governed, Mount, Truth, c_program, wait_until};

use crate::calls::Calls;
use crate::driver::Dir;
use crate::memory_model::Random;

const MIB: u64 = 1 << 20;

/// Allocates memory of every kind in the current context.
fn fill(calls: &mut Calls) {
    calls.ok(&format!("cuMemAlloc_v2 &linear {}", 3 * MIB));
    calls.ok(&format!("cuMemAllocManaged &managed {} 1", 5 * MIB));
    calls.ok("cuMemAllocPitch_v2 &pitched &pitch 1000 100 4");
    calls.ok(&format!("cuMemHostAlloc &host {} 0", 2 * MIB));
    // 1024 x 1024 elements of 8 bits, one channel.
    for (word, value) in [1024, 1024, 0, 1 | 1 << 32].into_iter().enumerate() {
        calls.put("descriptor", 8 * word, 8, value);
    }
    calls.ok("cuArray3DCreate_v2 &array &descriptor");
    calls.ok("cuMipmappedArrayCreate &mipmap &descriptor 3");
}

#[test]
fn context_end_by_any_call_uncharges_its_memory() {
    let mount = Mount::new();
    let truth = Truth::of(&mount.simgpu_dir());
    for end in [
        "cuCtxDestroy $second",
        "cuCtxDestroy_v2 $second",
        "cuDevicePrimaryCtxReset 0",
        "cuDevicePrimaryCtxReset_v2 0",
        "cuDevicePrimaryCtxRelease 0",
        "cuDevicePrimaryCtxRelease_v2 0",
    ] {
        let mut calls = Calls::start(&mount);
        let dir = Dir::of(&mount, calls.pid());
        let kept = if end.contains("$second") {
            calls.ok(&format!("cuMemAlloc_v2 &kept {MIB}"));
            calls.ok("cuCtxCreate_v2 &second 0 0");
            MIB
        } else {
            0
        };
        fill(&mut calls);
        let current = dir.number("memory.current");
        assert!(current > 8 * MIB + kept, "{end}");
        assert_eq!(current, truth.used(calls.pid(), 0), "{end}");
        assert_eq!(dir.key("memory.stat", "host"), 2 * MIB, "{end}");
        calls.ok(end);
        assert_eq!(dir.number("memory.current"), kept, "{end}");
        assert_eq!(truth.used(calls.pid(), 0), kept, "{end}");
        assert_eq!(dir.key("memory.stat", "array"), 0, "{end}");
        assert_eq!(
            dir.key("memory.stat", "host"),
            0,
            "{end}: page-locked memory is still charged"
        );
    }
}

#[test]
fn unloading_a_module_frees_no_allocation() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    fill(&mut calls);
    let current = dir.number("memory.current");
    // An empty module in PTX.
    let ptx = b".version 7.8\n.target sm_75\n.address_size 64\n";
    let bytes: String = ptx.iter().map(|byte| format!("{byte:02x}")).collect();
    calls.fill("code", &bytes);
    calls.ok("cuModuleLoadData &module &code");
    calls.ok("cuLibraryLoadData &library &code 0 0 0 0 0 0");
    calls.ok("cuModuleUnload $module");
    calls.ok("cuLibraryUnload $library");
    assert_eq!(dir.number("memory.current"), current);
}

#[test]
fn stream_ordered_free_uncharges_when_done() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    let truth = Truth::of(&mount.simgpu_dir());
    calls.ok("cuStreamCreate &stream 1");
    for size in ["cuMemAlloc_v2 &word 4", "cuMemAlloc_v2 &block 8388608"] {
        calls.ok(size);
    }
    dir.write("memory.limit", 9 * MIB);
    let charged = dir.number("memory.current");
    // The stream waits until the word is written.
    calls.ok("cuMemsetD32_v2 $word 0 1");
    calls.ok("cuStreamWaitValue32_v2 $stream $word 1 0");
    calls.ok("cuMemFreeAsync $block $stream");
    assert_eq!(dir.number("memory.current"), charged);
    assert_eq!(truth.used(calls.pid(), 0), charged);
    assert_eq!(
        calls.call("cuMemAlloc_v2 &other 8388608"),
        Err(2),
        "memory was freed before the stream reached its free"
    );
    calls.ok("cuMemsetD32_v2 $word 1 1");
    // The program does not wait for the stream; the next allocation that needs the room notices.
    wait_until("the stream has completed", || {
        calls.call("cuStreamQuery $stream").is_ok()
    });
    calls.ok("cuMemAlloc_v2 &other 8388608");
    assert_eq!(dir.number("memory.current"), charged);
    calls.ok("cuMemFreeAsync $other $stream");
    calls.ok("cuStreamSynchronize $stream");
    assert_eq!(dir.number("memory.current"), 4);
}

/// A thread of the library settles the same frees at the same time. A block is a growth step of a pool.
#[test]
fn room_is_there_as_soon_as_a_stream_has_reached_the_free() {
    let mount = Mount::new();
    let program = c_program("freed_room.c", &["-ldl"]);
    let mut programs: Vec<_> = (0..4)
        .map(|_| {
            let mut command = mount.command(&program);
            command.arg("500");
            let mut program = Governed::spawn(command);
            let ready = program.expect("ready ");
            let pid = ready.trim_start_matches("ready ").parse().expect("a pid");
            Dir::of(&mount, pid).write("memory.limit", 32 * MIB);
            program.say("go");
            program
        })
        .collect();
    for program in &mut programs {
        program.expect("done");
    }
}

#[test]
fn stream_ordered_free_uncharges_without_further_calls() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok("cuStreamCreate &stream 1");
    calls.ok("cuMemAlloc_v2 &word 4");
    calls.ok("cuMemsetD32_v2 $word 0 1");
    for stream in ["$stream", "0", "2"] {
        calls.ok("cuMemAlloc_v2 &block 8388608");
        calls.ok(&format!("cuStreamWaitValue32_v2 {stream} $word 1 0"));
        calls.ok(&format!("cuMemFreeAsync $block {stream}"));
        assert_eq!(dir.number("memory.current"), 8 * MIB + 4, "{stream}");
        // Written on another stream, which waits for no other.
        calls.ok("cuStreamCreate &other 1");
        calls.ok("cuStreamWriteValue32_v2 $other $word 1 0");
        if stream == "2" {
            // Only this thread can query its per-thread default stream.
            calls.ok("cuCtxSynchronize");
        }
        wait_until("the freed block is uncharged", || {
            dir.number("memory.current") == 4
        });
        calls.ok("cuStreamWriteValue32_v2 $other $word 0 0");
        calls.ok("cuStreamSynchronize $other");
    }
}

/// Streams that wait for words are destroyed while memory is freed on them: at each step at least what the
/// device has lost is charged, and in the end as much.
#[test]
fn memory_freed_on_destroyed_streams_is_charged_until_their_work_ends() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let (dir, truth, pid) = (Dir::of(&mount, calls.pid()), mount.truth(), calls.pid());
    calls.put("properties", 0, 4, 1);
    calls.put("properties", 8, 4, 1);
    calls.ok("cuMemPoolCreate &pool &properties");
    calls.ok("cuMemAlloc_v2 &words 4096");
    calls.ok("cuMemsetD32_v2 $words 0 1024");
    let words = calls.get("words");
    let mut random = Random(0x5eed);
    let mut streams = [None; 3];
    let (mut blocks, mut closed) = (Vec::new(), Vec::new());
    let (mut nr_words, mut nr_destroyed) = (0, 0);
    for step in 0..600 {
        let number = random.below(streams.len() as u64);
        let at = usize::try_from(number).expect("an index");
        let Some(word) = streams[at] else {
            calls.ok(&format!("cuStreamCreate &stream{number} 1"));
            let word = words + 4 * nr_words;
            calls.ok(&format!("cuStreamWaitValue32_v2 $stream{number} {word} 1 0"));
            streams[at] = Some(word);
            nr_words += 1;
            continue;
        };
        let bytes = 1 + random.below(8 * MIB);
        match random.below(8) {
            0 | 1 => {
                calls.ok(&format!("cuMemAlloc_v2 &b{step} {bytes}"));
                blocks.push(step);
            }
            2 | 3 => {
                let (call, from) = match random.below(2) {
                    0 => ("cuMemAllocAsync", ""),
                    _ => ("cuMemAllocFromPoolAsync", "$pool "),
                };
                calls.ok(&format!("{call} &b{step} {bytes} {from}$stream{number}"));
                blocks.push(step);
            }
            4 | 5 if !blocks.is_empty() => {
                let block = blocks.swap_remove(usize::try_from(random.below(blocks.len() as u64)).unwrap());
                calls.ok(&format!("cuMemFreeAsync $b{block} $stream{number}"));
            }
            6 => {
                calls.ok(&format!("cuStreamDestroy_v2 $stream{number}"));
                streams[at] = None;
                closed.push(word);
                nr_destroyed += 1;
            }
            _ if !closed.is_empty() => {
                let word = closed.swap_remove(usize::try_from(random.below(closed.len() as u64)).unwrap());
                calls.ok(&format!("cuMemsetD32_v2 {word} 1 1"));
            }
            _ => {}
        }
        let charged = dir.number("memory.current");
        let lost = truth.used(pid, 0);
        assert!(charged >= lost, "step {step}: {charged} charged, {lost} lost");
    }
    assert!(nr_destroyed > 20, "{nr_destroyed} streams were destroyed");
    calls.ok("cuMemPoolDestroy $pool");
    calls.ok("cuMemsetD32_v2 $words 1 1024");
    for block in blocks {
        calls.ok(&format!("cuMemFree_v2 $b{block}"));
    }
    calls.ok("cuCtxSynchronize");
    wait_until("the charge is what the device has lost", || {
        dir.number("memory.current") == truth.used(pid, 0)
    });
    assert_eq!(truth.used(pid, 0), 4096);
}
