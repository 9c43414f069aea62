//! Tests the GPU time that programs are charged whose kernels do not tell the length of the next one, while
//! their quota changes, against what the simulated GPU has done.

use std::fs;
use std::time::Instant;

use support::{Governed, Mount, artifacts, c_program, wait_until};

use crate::gpu_seconds::charged;
use crate::soak::random::Random;

/// Microseconds of kernels that a program launches, and of the longest one.
const WORK: u64 = 1_500_000;
const LONGEST: f64 = 300_000.0;

fn erratic(mount: &Mount, seed: u64, threads: usize, usec: u64) -> Governed {
    let driver = format!("-L{}", artifacts().simgpu().display());
    let mut command = mount.command(c_program("erratic.c", &["-pthread", &driver, "-lcuda"]));
    command.args([seed.to_string(), threads.to_string(), usec.to_string()]);
    let mut program = Governed::spawn(command);
    program.expect("ready");
    program
}

/// Runs a program whose quota and freeze change at times that follow from the seed; returns the microseconds
/// that it is charged and those for which the GPU ran its kernels.
fn charged_and_true(seed: u64, threads: usize) -> [u64; 2] {
    let (mount, mut random) = (Mount::new(), Random::of(seed));
    let program = erratic(&mount, seed, threads, WORK);
    let pid = program.pid();
    let truth = mount.truth();
    let kill = (random.below(3) == 0).then(|| 200_000 + random.below(1_000_000) as u64);
    let mut next = 0;
    wait_until("the program has ended", || {
        let truly = truth.usage_usec(pid, 0);
        if kill.is_some_and(|kill| truly > kill) {
            program.signal(nix::sys::signal::Signal::SIGKILL);
        } else if truly >= next {
            next = truly + 10_000 + random.below(200_000) as u64;
            let quota = format!("{} 100000", 20_000 + random.below(70_000));
            let writes: &[(&str, &str)] = match random.below(4) {
                0 => &[("compute.max", "max")],
                1 => &[("compute.freeze", "1"), ("compute.freeze", "0")],
                _ => &[("compute.max", &quota)],
            };
            for (file, value) in writes {
                // It may have ended.
                let _ = fs::write(mount.path().join(pid.to_string()).join(file), value);
            }
        }
        !mount.governs(pid)
    });
    [charged(&mount, pid), truth.usage_usec(pid, 0)]
}

#[test]
fn erratic_programs_are_charged_what_they_use() {
    let mut all = [0; 2];
    for threads in [1, 4] {
        for seed in 1..=12 {
            let [told, truly] = charged_and_true(seed, threads);
            println!("{threads} threads, seed {seed}: {told} of {truly}");
            // What a killed program used since the last look is lost.
            assert!(told + 100_000 > truly * 3 / 4, "{told} of {truly}");
            assert!(told < truly * 2, "{told} of {truly}");
            all = [all[0] + told, all[1] + truly];
        }
    }
    let [told, truly] = all;
    assert!(told > truly * 9 / 10 && told < truly * 5 / 4, "{told} of {truly}");
}

/// Over its whole life, except for the longest kernel: one that runs is not interrupted.
#[test]
fn erratic_programs_get_no_more_than_their_quota() {
    for threads in [1, 4] {
        for seed in 1..=4 {
            let mount = Mount::new();
            let program = erratic(&mount, seed, threads, WORK);
            let (pid, truth) = (program.pid(), mount.truth());
            mount.write(pid, "compute.max", "25000 100000");
            let began = Instant::now();
            wait_until("the program has ended", || !mount.governs(pid));
            let (truly, passed) = (
                truth.usage_usec(pid, 0) as f64,
                began.elapsed().as_micros() as f64,
            );
            println!("{threads} threads, seed {seed}: {:.3}", truly / passed);
            assert!(truly < 0.25 * passed * 1.15 + LONGEST, "{truly} of {passed}");
        }
    }
}
