//! Tests the simulated driver under many threads and processes at once: in the end only what was kept is
//! held.

use simgpu::Held;
use support::{Truth, wait_until};

use crate::simgpu::Machine;

const MIB: u64 = 1 << 20;
const CONTEXT: u64 = 64 * MIB;

/// Python code of each thread: a sequence of its own that makes and fills objects of random kinds, or
/// destroys them.
const CHURN: &str = "
import random, threading
def make(kind):
    size = random.choice((1, 1000, 65536, 3 * MIB))
    if kind == 'linear': return alloc(size)
    if kind == 'pool': return got(c_uint64, 'cuMemAllocAsync', size, 2)
    if kind == 'shared': return got(c_uint64, 'cuMemAllocFromPoolAsync', size, pool, 2)
    if kind == 'managed': return got(c_uint64, 'cuMemAllocManaged', size, 1)
    if kind == 'array': return array_of(64, 64)
    if kind == 'vmm': return map_new(2 * MIB, handles=random.choice((0, POSIX_FD)))
    if kind == 'host': return map_new(2 * MIB, HOST)
def end(kind, what):
    if kind in ('pool', 'shared'): return cu.cuMemFreeAsync(what, 2)
    if kind == 'array': return cu.cuArrayDestroy(what)
    if kind in ('vmm', 'host'):
        ok(cu.cuMemUnmap(what[0], 2 * MIB)); ok(cu.cuMemRelease(what[1])); return cu.cuMemAddressFree(what[0], 2 * MIB)
    return cu.cuMemFree_v2(what)
def churn(seed, rounds):
    random.seed(seed); ok(cu.cuCtxSetCurrent(context)); mine = []
    for _ in range(rounds):
        if mine and random.random() < 0.5: ok(end(*mine.pop(random.randrange(len(mine)))))
        else:
            kind = random.choice(('linear', 'pool', 'shared', 'managed', 'array', 'vmm', 'host')); what = make(kind)
            mine.append((kind, what))
            if kind in ('linear', 'pool', 'shared', 'managed'): ok(cu.cuMemsetD8Async(what, 1, 1, 2))
    for one in mine: ok(end(*one))
    ok(cu.cuStreamSynchronize(2))
def threads(count, rounds):
    failed = []
    def run(seed):
        try: churn(seed, rounds)
        except BaseException as error: failed.append(repr(error))
    all = [threading.Thread(target=run, args=(seed,)) for seed in range(count)]
    for one in all: one.start()
    for one in all: one.join()
    return failed
";

/// Returns the statements as one line, because the program reads lines.
fn script(text: &str) -> String {
    format!("exec({text:?}, globals())")
}

#[test]
fn churn_of_eight_threads_leaves_nothing() {
    let machine = Machine::new();
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    let pid = program.pid();
    program.run(&script(CHURN));
    program.run("pool = got(c_uint64, 'cuMemPoolCreate', pool_properties(handles=POSIX_FD))");
    assert_eq!(program.ask("threads(8, 200)"), "[]");
    program.calls(
        0,
        "cu.cuCtxSynchronize()
         cu.cuMemPoolTrimTo(pool, 0)
         cu.cuMemPoolTrimTo(got(c_uint64, 'cuDeviceGetDefaultMemPool', 0), 0)",
    );
    for kind in Held::ALL {
        let expected = if kind == Held::Context { CONTEXT } else { 0 };
        assert_eq!(truth.held(pid, 0, kind), expected, "{kind:?}");
    }
    assert_eq!(truth.used_by_all(0), CONTEXT);
    // Only the pool itself is still exported.
    assert_eq!(
        program.number("len(os.listdir(os.environ['SIMGPU_DIR'] + '/exports'))"),
        1
    );
}

#[test]
fn killed_sharing_processes_leave_nothing() {
    let machine = Machine::new();
    let mut watcher = machine.started();
    let truth = Truth::of(machine.directory());
    for round in 0..4 {
        let (mut one, mut other) = (machine.started(), machine.started());
        one.run(
            "address = alloc(5 * MIB)
             mapped, handle = map_new(4 * MIB, handles=POSIX_FD)
             descriptor = descriptor_of(handle)",
        );
        let (pid, descriptor) = (one.pid(), one.number("descriptor"));
        let handle = one.ask("exported('cuIpcGetMemHandle', address)");
        other.run(&format!(
            "there = opened('cuIpcOpenMemHandle_v2', {handle}, 1)
             own = borrow({pid}, {descriptor})
             handle = got(c_uint64, 'cuMemImportFromShareableHandle', own, POSIX_FD)"
        ));
        // Either process may be killed first.
        let both = if round % 2 == 0 {
            [one, other]
        } else {
            [other, one]
        };
        both.into_iter().for_each(crate::simgpu::Program::kill9);
        wait_until("the killed processes' memory is released", || {
            truth.used_by_all(0) == CONTEXT
        });
        assert_eq!(watcher.ask("free_memory() == 16384 * MIB - 64 * MIB"), "True");
    }
    assert_eq!(
        watcher.ask("os.listdir(os.environ['SIMGPU_DIR'] + '/exports')"),
        "[]"
    );
}
