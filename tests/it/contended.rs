//! Helpers for tests with several busy processes of different priorities on one GPU.

use std::path::Path;
use std::process::Command;

use support::{Governed, Mount, python, repository, wait_until};

use crate::simgpu::Program;

/// Steps of `gcgroup_work` per microsecond of a simulated GPU. Measuring the rate beside work of higher
/// priority would include the waits in the kernel time.
const RATE: &str = "1000";

/// Arguments that make `gcgroup-load` a batch job that is always busy.
pub(crate) const BATCH: [&str; 13] = [
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

/// Returns [`BATCH`] with kernels so long that the job has work queued whenever it has the turn, also on a
/// machine with few processors.
pub(crate) fn long_batch() -> [&'static str; 13] {
    BATCH.map(|word| if word == "500" { "4000" } else { word })
}

/// Starts a batch job with this priority that is busy until it is dropped.
#[track_caller]
pub(crate) fn batch(mount: &Mount, gpu: u32, priority: u32) -> Governed {
    let gpu = gpu.to_string();
    let job = mount.load(&[&BATCH[..], &["--device", &gpu]].concat());
    mount.write(job.pid(), "compute.priority", &priority.to_string());
    job
}

/// Starts `programs/driver.py`, governed, at this priority, with a context on GPU 0 and the kernel `spin`.
#[track_caller]
pub(crate) fn program(mount: &Mount, priority: u32) -> Program {
    let mut command: Command = mount.command(python());
    command.arg(repository().join("tests/programs/driver.py"));
    let mut program = Program(Governed::spawn(command));
    program.run("context = start()\nspin = kernel('gcgroup_spin')");
    mount.write(program.pid(), "compute.priority", &priority.to_string());
    program
}

/// Defines `flag` in a program: a word of page-locked memory shared by all processes that map the file.
#[track_caller]
pub(crate) fn share_word(program: &mut Program, file: &Path) {
    program.run(&format!(
        "import mmap
         file = open({file:?}, 'r+b')
         mapping = mmap.mmap(file.fileno(), 4096)
         flag = ctypes.addressof(c_char.from_buffer(mapping))
         ok(cu.cuMemHostRegister_v2(flag, 4096, 2))"
    ));
}

/// Waits until a process has used `usec` more microseconds of GPU time, as measured by the simulated GPU.
#[track_caller]
pub(crate) fn goes_on(mount: &Mount, pid: i32, gpu: usize, usec: u64) {
    let truth = mount.truth();
    let goal = truth.usage_usec(pid, gpu) + usec;
    wait_until("the process has used the GPU for so long", || {
        truth.usage_usec(pid, gpu) >= goal
    });
}

/// Waits until each of these sets of processes has its percentage of what all use, within six percent, over
/// an interval in which all use a second of GPU 0.
#[track_caller]
pub(crate) fn wait_for_used(mount: &Mount, parts: &[(Vec<i32>, u64)]) {
    let truth = mount.truth();
    let used = |pids: &[i32]| -> u64 { pids.iter().map(|pid| truth.usage_usec(*pid, 0)).sum() };
    let look = || -> Vec<u64> { parts.iter().map(|(pids, _)| used(pids)).collect() };
    let mut before = look();
    wait_until("each has used its part of the GPU", || {
        let now = look();
        let passed: Vec<u64> = now
            .iter()
            .zip(&before)
            .map(|(now, before)| now - before)
            .collect();
        let all: u64 = passed.iter().sum();
        if all < 1_000_000 {
            return false;
        }
        before = now;
        let mut each = passed.iter().zip(parts);
        each.all(|(used, (_, percent))| (100 * used / all).abs_diff(*percent) <= 6)
    });
}

/// Waits until the ratio of the first process's GPU time to the second's satisfies `is_it`, over an interval
/// in which all processes together used 200 ms of GPU 0.
#[track_caller]
pub(crate) fn wait_for_ratio(mount: &Mount, [first, second]: [i32; 2], is_it: impl Fn(f64) -> bool) {
    let truth = mount.truth();
    let both = || [first, second].map(|pid| truth.usage_usec(pid, 0));
    let mut before = both();
    wait_until("the ratio of GPU times is as expected", || {
        let now = both();
        let [first, second] = [now[0] - before[0], now[1] - before[1]];
        if first + second < 200_000 {
            return false;
        }
        before = now;
        is_it(first as f64 / second.max(1) as f64)
    });
}
