//! Tests quotas of programs that launch, wait and pause, by what the simulated GPU has done.

use std::fs;
use std::time::{Duration, Instant};

use support::{Governed, Mount, wait_until};

use crate::soak::random::Random;

const KERNELS: [u64; 6] = [5, 20, 100, 700, 5000, 30_000];
const PAUSES: [u64; 5] = [0, 30, 200, 1000, 5000];
const WAYS: [&str; 3] = ["synchronize", "event", "copy"];

/// Part of the GPU by which jobs may exceed their quota: two points, and the tolerance of the measured time.
const TOLERANCE: f64 = 0.05;

/// Part of the quota by which they may exceed it beyond that where a kernel is shorter than 100 us: its time
/// is known to 5 us.
const SHORT: f64 = 0.5;

#[test]
fn quota_of_jobs_that_pause_holds_by_true_time() {
    let mut random = Random::unlike_before();
    for _ in 0..6 {
        let (mount, quota) = (Mount::new(), [10, 20, 40, 60][random.below(4)]);
        fs::create_dir(mount.path().join("team")).expect("root may create a group");
        mount.write("team", "compute.max", &format!("{} 100000", quota * 1000));
        let (mut texts, mut least) = (Vec::new(), u64::MAX);
        let jobs: Vec<Governed> = (0..1 + random.below(3))
            .map(|_| {
                let [kernel, pause] = [KERNELS[random.below(6)], PAUSES[random.below(5)]];
                least = least.min(kernel);
                let [kernel, pause] = [kernel, pause].map(|usec| usec.to_string());
                let way = WAYS[random.below(3)];
                texts.push(format!("{kernel}+{pause} {way}"));
                let fixed = [
                    "paced",
                    "--kernel",
                    "work",
                    "--rate",
                    "1000",
                    "--duration",
                    "3600",
                ];
                let varied = ["--kernel-usec", &kernel, "--pause-usec", &pause, "--way", way];
                let job = mount.load(&[&fixed[..], &varied].concat());
                mount.write("team", "gcgroup.procs", &job.pid().to_string());
                job
            })
            .collect();
        let truth = mount.truth();
        let used = || jobs.iter().map(|job| truth.usage_usec(job.pid(), 0)).sum::<u64>();
        // Costs are learned, and overruns from before are paid for.
        let began = Instant::now();
        wait_until("three periods have passed", || {
            began.elapsed() > Duration::from_millis(300)
        });
        let (began, before) = (Instant::now(), used());
        wait_until("they have run for two seconds", || {
            began.elapsed() > Duration::from_secs(2)
        });
        let share = (used() - before) as f64 / began.elapsed().as_micros() as f64;
        println!("{quota} %: {share:.3} by {texts:?}");
        let most = quota as f64 / 100.0 * if least < 100 { 1.0 + SHORT } else { 1.0 };
        assert!(share < most + TOLERANCE, "{quota} %: {share}");
    }
}
