//! Tests of calls that take memory of unknown size: loading of modules and libraries, limits of contexts.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use support::{Governed, Mount, c_program, wait_until};

use super::{CONTEXT, Environment, LIMIT, MIB, calls, mount};
use crate::calls::{Calls, OUT_OF_MEMORY};
use crate::driver::Dir;

/// A call whose size is not known beforehand, in a program whose modules take 50 MiB each. N is the number of
/// the round.
struct Growing {
    /// When modules take memory (`CUDA_MODULE_LOADING`).
    mode: &'static str,
    calls: &'static [&'static str],
    /// Frees what the calls take.
    free: &'static str,
}

const EAGER: &str = "EAGER";
const LAZY: &str = "LAZY";
const UNLOAD: &str = "cuModuleUnload $moduleN";
const UNLOAD_LIBRARY: &str = "cuLibraryUnload $libraryN";
const DESTROY: &str = "cuCtxDestroy_v2 $otherN";
const LOAD: &str = "cuModuleLoadData &moduleN &code";
const LOAD_LIBRARY: &str = "cuLibraryLoadData &libraryN &code 0 0 0 0 0 0";
const CREATE: &str = "cuCtxCreate_v2 &otherN 0 0";
const LAUNCH: &str = "cuLaunchKernel $kernel 1 1 1 1 1 1 0 0 0 0";

const fn growing(mode: &'static str, calls: &'static [&'static str], free: &'static str) -> Growing {
    Growing { mode, calls, free }
}

const GROWING: &[Growing] = &[
    growing(EAGER, &[LOAD], UNLOAD),
    growing(EAGER, &["cuModuleLoadDataEx &moduleN &code 0 0 0"], UNLOAD),
    growing(EAGER, &["cuModuleLoadFatBinary &moduleN &code"], UNLOAD),
    growing(EAGER, &[LOAD_LIBRARY], UNLOAD_LIBRARY),
    growing(
        LAZY,
        &[LOAD, "cuModuleGetFunction &kernel $moduleN &entry"],
        UNLOAD,
    ),
    growing(
        LAZY,
        &[LOAD, "cuModuleEnumerateFunctions &kernel 1 $moduleN", LAUNCH],
        UNLOAD,
    ),
    growing(
        LAZY,
        &[LOAD, "cuModuleGetGlobal_v2 &address &size $moduleN &name"],
        UNLOAD,
    ),
    growing(
        LAZY,
        &[
            LOAD_LIBRARY,
            "cuLibraryGetKernel &kernel $libraryN &entry",
            LAUNCH,
        ],
        UNLOAD_LIBRARY,
    ),
    growing(
        LAZY,
        &[
            LOAD_LIBRARY,
            "cuLibraryEnumerateKernels &kernel 9 $libraryN",
            LAUNCH,
        ],
        UNLOAD_LIBRARY,
    ),
    growing(
        LAZY,
        &[
            LOAD_LIBRARY,
            "cuLibraryGetModule &module $libraryN",
            "cuModuleGetFunction &kernel $module &entry",
        ],
        UNLOAD_LIBRARY,
    ),
    growing(
        LAZY,
        &[LOAD_LIBRARY, "cuLibraryGetGlobal &address &size $libraryN &name"],
        UNLOAD_LIBRARY,
    ),
    growing(
        LAZY,
        &[
            LOAD_LIBRARY,
            "cuLibraryGetKernel &kernel $libraryN &entry",
            CREATE,
            "cuKernelGetFunction &function $kernel",
        ],
        "cuCtxDestroy_v2 $otherN",
    ),
    // Malloc heap, and 200 bytes more of stack for each of 132 * 2048 threads.
    growing(EAGER, &[CREATE, "cuCtxSetLimit 2 60817408"], DESTROY),
    growing(EAGER, &[CREATE, "cuCtxSetLimit 0 1224"], DESTROY),
];

fn fill(calls: &mut Calls, variable: &str, text: &str) {
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    calls.fill(variable, &(hex + "00"));
}

/// Starts a program with a context and with code of 50 MiB for modules, which has 5 kernels.
fn with_code(mount: &Mount, limit: &str, environment: Environment<'_>) -> Calls {
    let size = [("SIMGPU_CODE_SIZE", "49M")];
    let mut calls = calls(mount, limit, &[environment, &size].concat());
    calls.ok("cuDevicePrimaryCtxRetain &context 0");
    calls.ok("cuCtxSetCurrent $context");
    let mut code = ".version 7.8\n.target sm_75\n.address_size 64\n".to_owned();
    code += ".visible .global .align 4 .b8 big[1048576];\n";
    code.extend((0..5).map(|number| format!(".visible .entry kernel{number}() {{ ret; }}\n")));
    fill(&mut calls, "code", &code);
    fill(&mut calls, "name", "big");
    fill(&mut calls, "entry", "kernel0");
    calls
}

#[test]
fn memory_of_unknown_size_exceeds_no_limit() {
    let mount = mount();
    for Growing { mode, calls, free } in GROWING {
        let mut program = with_code(&mount, "512M", &[("CUDA_MODULE_LOADING", mode)]);
        let dir = Dir::of(&mount, program.pid());
        let (truth, pid) = (mount.truth(), program.pid());
        let mut run = |calls: &[&str], round: u64| {
            let round = round.to_string();
            let call = |call: &&str| program.call(&call.replace('N', &round));
            calls.iter().try_for_each(call)
        };
        let rounds = (0..).find(|round| {
            let result = run(calls, *round);
            assert!(result.is_ok() || result == OUT_OF_MEMORY, "{calls:?}: {result:?}");
            // What a library has taken in a context is free once it is unloaded.
            let used = truth.used(pid, 0);
            assert!(used <= LIMIT + 50 * MIB, "{calls:?}: {used} after {round}");
            result.is_err()
        });
        let rounds = rounds.expect("a refusal");
        assert!(rounds >= 2, "{calls:?}: {rounds}");
        wait_until(&format!("{calls:?}: all is charged"), || {
            dir.number("memory.current") == truth.used(pid, 0)
        });
        for round in 0..rounds {
            assert_eq!(run(&[free], round), Ok(()), "{free:?}");
        }
        wait_until(&format!("{calls:?}: there is room again"), || {
            dir.number("memory.current") == truth.used(pid, 0)
        });
        assert_eq!(run(calls, rounds + 1), Ok(()), "{calls:?}");
    }
}

/// Only the driver knows what a module takes, so one of any size is there until it is refused.
#[test]
fn modules_of_threads_exceed_the_limit_one_at_a_time() {
    const LARGEST: u64 = 60 * MIB;
    const MODULES_ONLY: u32 = !(1 << 9);
    let mount = mount();
    let mut command = mount.command(c_program("memory_mix.c", &["-pthread", "-ldl"]));
    command.env("SIMGPU_CODE_SIZE", "0");
    command.args(["8", "24", &(LARGEST >> 10).to_string(), &MODULES_ONLY.to_string()]);
    let mut program = Governed::spawn(command);
    let ready = program.expect("ready ");
    let pid = ready.trim_start_matches("ready ").parse().expect("a pid");
    Dir::of(&mount, pid).write("memory.limit", LIMIT);
    program.say("go");
    let mut nr_refused = 0;
    loop {
        let line = program.line().expect("a line");
        match line.split(' ').next() {
            Some("crowded") => nr_refused += 1,
            Some("refused") => program.say("go on"),
            _ => break assert!(line.starts_with("done "), "{line}"),
        }
    }
    let most = mount.truth().peak(pid, 0);
    assert!(nr_refused > 10, "{nr_refused}");
    assert!((LIMIT..=LIMIT + LARGEST).contains(&most), "{most}");
}

/// Makes a call again and again that exceeds the limit, and checks that its memory is seldom there.
fn check_seldom_there(mount: &Mount, program: &mut Calls, call: &str, limit: u64) {
    let (truth, pid) = (mount.truth(), program.pid());
    let is_done = AtomicBool::new(false);
    let [over, looks] = thread::scope(|scope| {
        let looker = scope.spawn(|| {
            let mut counts = [0, 0];
            while !is_done.load(Relaxed) {
                counts[0] += u32::from(truth.used(pid, 0) > limit);
                counts[1] += 1;
            }
            counts
        });
        let answers = [(); 5].map(|()| program.call(call));
        is_done.store(true, Relaxed);
        assert_eq!(answers, [OUT_OF_MEMORY; 5]);
        looker.join().expect("the looks")
    });
    assert!(0 < over && over < looks / 3, "{over} of {looks}");
}

/// A loop of refused loads has the memory a tenth of the time.
#[test]
fn refused_modules_are_seldom_there() {
    let mount = mount();
    let mut program = with_code(&mount, "512M", &[]);
    let code = format!(
        ".version 7.8\n.target sm_75\n.visible .global .align 4 .b8 table[{}];\n",
        3 * 1024 * MIB
    );
    fill(&mut program, "code", &code);
    check_seldom_there(&mount, &mut program, LOAD, LIMIT);
}

#[test]
fn refused_contexts_are_seldom_there() {
    let mount = mount();
    let mut program = calls(&mount, "100M", &[]);
    program.ok("cuCtxCreate_v2 &first 0 0");
    check_seldom_there(&mount, &mut program, CREATE, 100 * MIB);
}

#[test]
fn modules_exceed_no_limit_without_a_daemon() {
    let mut mount = mount();
    mount.stop();
    let mut calls = with_code(&mount, "512M", &[("CUDA_MODULE_LOADING", LAZY)]);
    // The context is charged by its estimate, 256 MiB.
    for _ in 0..3 {
        for number in 0..5 {
            calls.ok(&format!("cuModuleLoadData &module{number} &code"));
            calls.ok(&format!("cuModuleGetFunction &function $module{number} &entry"));
        }
        calls.ok("cuModuleLoadData &other &code");
        let refused = calls.call("cuModuleGetFunction &function $other &entry");
        assert_eq!(refused, OUT_OF_MEMORY);
        calls.ok("cuModuleUnload $other");
        for number in 0..5 {
            calls.ok(&format!("cuModuleUnload $module{number}"));
        }
    }
}

#[test]
fn kernels_of_a_loaded_library_are_not_measured() {
    let mount = mount();
    for mode in [EAGER, LAZY] {
        let trace = mount.simgpu_dir().join(mode);
        let trace_name = trace.to_str().expect("the path is UTF-8");
        let environment = [("CUDA_MODULE_LOADING", mode), ("SIMGPU_TRACE", trace_name)];
        let mut calls = with_code(&mount, "512M", &environment);
        calls.ok("cuLibraryLoadData &library &code 0 0 0 0 0 0");
        calls.ok("cuModuleLoadData &module &code");
        let measured = || {
            let text = std::fs::read_to_string(&trace).expect("the trace is readable");
            text.lines()
                .filter(|line| line.contains(" cuMemGetInfo_v2 "))
                .count()
        };
        let mut at_first = 0;
        for number in 0..5 {
            fill(&mut calls, "entry", &format!("kernel{number}"));
            calls.ok("cuLibraryGetKernel &kernel $library &entry");
            calls.ok("cuKernelGetFunction &function $kernel");
            calls.ok("cuLibraryGetModule &library_module $library");
            calls.ok("cuLibraryGetGlobal &address &size $library &name");
            calls.ok("cuModuleGetFunction &function $module &entry");
            if number == 0 {
                at_first = measured();
            }
        }
        assert!(at_first > 0);
        assert_eq!(measured(), at_first);
    }
}

#[test]
fn modules_within_the_limit_are_charged_as_they_are_loaded() {
    let mount = mount();
    let mut calls = with_code(&mount, "400M", &[]);
    let dir = Dir::of(&mount, calls.pid());
    for _ in 0..20 {
        calls.ok("cuModuleLoadData &module &code");
        assert_eq!(dir.number("memory.current"), CONTEXT + 50 * MIB);
        assert_eq!(dir.key("memory.stat", "context_estimated"), 0);
        calls.ok(&format!(
            "cuMemAlloc_v2 &block {}",
            400 * MIB - CONTEXT - 50 * MIB
        ));
        assert_eq!(calls.call("cuModuleLoadData &other &code"), OUT_OF_MEMORY);
        wait_until("the refused module is given back", || {
            dir.number("memory.current") == 400 * MIB
        });
        calls.ok("cuMemFree_v2 $block");
        calls.ok("cuModuleUnload $module");
        wait_until("the module is given back", || {
            dir.number("memory.current") == CONTEXT
        });
    }
}
