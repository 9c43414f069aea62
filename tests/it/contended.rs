//! Processes of several priorities on one GPU, all busy: what more than one file of tests needs.

use std::path::Path;
use std::process::Command;

use support::{Governed, Mount, python, repository, wait_until};

use crate::simgpu::Program;

/// Steps of `gcgroup_work` in a microsecond of a simulated GPU. Whoever measured it beside more important
/// work would wait long, and take the waits for its own kernels' time.
const RATE: &str = "1000";

/// How `gcgroup-load` is a batch job that is always busy.
pub const BATCH: [&str; 13] = [
    "throughput",
    "--kernel",
    "work",
    "--kernel-usec",
    "500",
    "--rate",
    RATE,
    "--depth",
    "4",
    "--duration",
    "3600",
    "--interval",
    "3600",
];

/// A batch job that is always busy, at this priority, until it is dropped.
#[track_caller]
pub fn batch(mount: &Mount, gpu: u32, priority: u32) -> Governed {
    let gpu = gpu.to_string();
    let job = mount.load(&[&BATCH[..], &["--device", &gpu]].concat());
    mount.write(job.pid(), "compute.priority", &priority.to_string());
    job
}

/// `programs/driver.py`, governed, at this priority, with a context on GPU 0 and `spin`, a kernel.
#[track_caller]
pub fn program(mount: &Mount, priority: u32) -> Program {
    let mut command: Command = mount.command(python());
    command.arg(repository().join("tests/programs/driver.py"));
    let mut program = Program(Governed::spawn(command));
    program.run("context = start()\nspin = kernel('gcgroup_spin')");
    mount.write(program.pid(), "compute.priority", &priority.to_string());
    program
}

/// Gives a program `flag`, a word of page-locked memory that all who share the file see.
#[track_caller]
pub fn share_word(program: &mut Program, file: &Path) {
    program.run(&format!(
        "import mmap
         file = open({file:?}, 'r+b')
         mapping = mmap.mmap(file.fileno(), 4096)
         flag = ctypes.addressof(c_char.from_buffer(mapping))
         ok(cu.cuMemHostRegister_v2(flag, 4096, 2))"
    ));
}

/// Waits until a process has had the GPU for so much longer, by the GPU's own account.
#[track_caller]
pub fn goes_on(mount: &Mount, pid: i32, gpu: usize, usec: u64) {
    let truth = mount.truth();
    let goal = truth.usage_usec(pid, gpu) + usec;
    wait_until("it has had the GPU", || truth.usage_usec(pid, gpu) >= goal);
}
/// Waits until, while they all together have had GPU 0 for 200 ms, the first had so many times what the
/// second had.
#[track_caller]
pub fn wait_for_ratio(mount: &Mount, [first, second]: [i32; 2], is_it: impl Fn(f64) -> bool) {
    let truth = mount.truth();
    let both = || [first, second].map(|pid| truth.usage_usec(pid, 0));
    let mut before = both();
    wait_until("the shares are so", || {
        let now = both();
        let [first, second] = [now[0] - before[0], now[1] - before[1]];
        if first + second < 200_000 {
            return false;
        }
        before = now;
        is_it(first as f64 / second.max(1) as f64)
    });
}
