//! Tests that submissions which the driver refuses count as none.

use std::fs;

use support::{Governed, Mount, artifacts, c_program, wait_until};

use crate::driver::Dir;
use crate::soak::random::Random;

fn start(mount: &Mount, seed: u64, threads: usize, rounds: usize) -> Governed {
    let driver = format!("-L{}", artifacts().simgpu().display());
    let mut command = mount.command(c_program("refused_launches.c", &["-pthread", &driver, "-lcuda"]));
    command.args([seed.to_string(), threads.to_string(), rounds.to_string()]);
    let mut program = Governed::spawn(command);
    program.expect("ready");
    program
}

#[test]
fn refused_submissions_are_not_counted() {
    for (seed, threads) in [(1, 1), (2, 1), (3, 8), (4, 8)] {
        let (mount, mut random) = (Mount::new(), Random::of(seed));
        let mut program = start(&mount, seed, threads, 20_000 / threads);
        let (pid, dir) = (program.pid(), Dir::of(&mount, program.pid()));
        let mut told = None;
        wait_until("the program has made its submissions", || {
            let writes: &[(&str, &str)] = match random.below(4) {
                0 => &[("compute.max", "max")],
                1 => &[("compute.freeze", "1"), ("compute.freeze", "0")],
                2 => &[("compute.max", "90000 100000")],
                _ => &[],
            };
            for (file, value) in writes {
                fs::write(mount.path().join(pid.to_string()).join(file), value).expect("it lives");
            }
            told = program.line_now();
            told.is_some()
        });
        let made: Vec<u64> = told
            .expect("a line")
            .split(' ')
            .map(|word| word.parse().expect("a number"))
            .collect();
        let counts = ["nr_launches", "nr_graphs", "nr_copies"].map(|key| dir.key("compute.stat", key));
        assert_eq!(counts[..], made[..], "{threads} threads, seed {seed}");
        assert_eq!(
            mount.truth().nr_launches(pid, 0),
            made[0],
            "{threads} threads, seed {seed}"
        );
        let all = made[0];
        let shown = format!("nr_submitted_kernels: {all}\nnr_ended_kernels: {all}\nnr_pending_kernels: 0\n");
        wait_until("all are shown to have ended", || {
            dir.read("gcgroup.stat").trim() == shown.trim()
        });
        // No thread counts as inside the driver.
        dir.freeze();
    }
}
