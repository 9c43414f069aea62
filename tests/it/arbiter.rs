//! Whose turn it is: real processes on a simulated GPU, and the daemon between them.

use std::time::Duration;

use support::{Config, Mount};

use crate::contended::{batch, goes_on};

#[test]
fn explore() {
    for (policy, a, b) in [
        ("weighted", 7, 8),
        ("weighted", 6, 8),
        ("weighted", 4, 8),
        ("strict", 7, 8),
        ("weighted", 8, 8),
    ] {
        let mount = Mount::with(Config::default().arg("--policy").arg(policy));
        let jobs = [batch(&mount, 0, a), batch(&mount, 0, b)];
        for job in &jobs {
            goes_on(&mount, job.pid(), 0, 2_000);
        }
        let truth = mount.truth();
        let used = || jobs.each_ref().map(|job| truth.usage_usec(job.pid(), 0));
        let (before, began) = (used(), std::time::Instant::now());
        std::thread::sleep(Duration::from_secs(5));
        let after = used();
        let took = began.elapsed().as_micros();
        println!(
            "{policy} {a} {b}: {:?} {:?} of {took}",
            after[0] - before[0],
            after[1] - before[1]
        );
        for job in &jobs {
            println!(
                "{} {}",
                mount.read(job.pid(), "compute.stat").replace('\n', " "),
                truth.usage_usec(job.pid(), 0)
            );
        }
    }
}
