//! Throughput of jobs whose memory does not fit together, which take memory turns, against that of a job
//! that is alone. The device is an H200 scaled down to 1/1024 with the same bandwidth of copies, so moves and
//! turns are that much shorter, down to the shortest turn. Contents are verified all the time.

use std::time::{Duration, Instant};

use serde_json::json;
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::report::Report;

const TOTAL: u64 = 140 << 20;
const BLOCK: u64 = 2 << 20;
/// Bytes a second.
const BANDWIDTH: u64 = 50_000_000_000;
/// How long each number of jobs is measured, at least; then until all have had equally many turns.
const LEAST: Duration = Duration::from_secs(15);

pub(crate) fn run(report: &mut Report) {
    let [alone] = shares(1, TOTAL * 3 / 4)[..] else {
        return;
    };
    for (name, nr_jobs, bytes, least) in [
        ("turns: two jobs of 3/4", 2, TOTAL * 3 / 4, 0.45),
        ("turns: three jobs of 1/2", 3, TOTAL / 2, 0.29),
    ] {
        let shares: Vec<f64> = shares(nr_jobs, bytes).iter().map(|one| one / alone).collect();
        let worst = shares.iter().copied().fold(f64::MAX, f64::min);
        let detail = json!({ "throughput": shares, "alone": alone, "least": least });
        report.add(name, 1.0 / worst, "times as long as alone", 1.0 / least, detail);
    }
}

/// Returns the part of the time in which each of these jobs used the GPU.
fn shares(nr_jobs: usize, bytes: u64) -> Vec<f64> {
    // On a machine that is not idle, moves take long, and turns must end all the same.
    let configuration = tempfile::NamedTempFile::new().expect("a file");
    let text = "[compute]\nmemory_turn_most_usec = 4_000_000\n";
    std::fs::write(configuration.path(), text).expect("the file is writable");
    let path = configuration.path().to_str().expect("the path is UTF-8");
    let mount = Mount::with(
        Config::default()
            .arg("--config")
            .arg(path)
            .env("SIMGPU_MEMORY", TOTAL)
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_KEPT", TOTAL)
            .env("SIMGPU_HOST_BANDWIDTH", BANDWIDTH),
    );
    let mut jobs: Vec<Governed> = (0..nr_jobs).map(|_| job(&mount, bytes)).collect();
    jobs.iter_mut().for_each(|job| job.say("work 20000"));
    let pids: Vec<i32> = jobs.iter().map(Governed::pid).collect();
    let nr_turns = || mount.number(pids[0], "compute.stat", "nr_memory_turns");
    // From the beginning of a turn of the first job to that of a later one: all have had equally many.
    let next = |after: u64| {
        if nr_jobs > 1 {
            wait_until("a turn begins", || nr_turns() > after);
        }
    };
    next(2);
    next(nr_turns());
    let truth = mount.truth();
    let used = || {
        pids.iter()
            .map(|pid| truth.usage_usec(*pid, 0))
            .collect::<Vec<_>>()
    };
    let (before, begin) = (used(), Instant::now());
    std::thread::sleep(LEAST);
    next(nr_turns());
    let (after, took) = (used(), begin.elapsed().as_secs_f64());
    for job in &mut jobs {
        let answer = job.ask("verify");
        assert!(answer.starts_with("worked "), "{answer}");
        assert_eq!(job.line(), Some(format!("verified {}", bytes / BLOCK)));
    }
    let each = before.iter().zip(after);
    each.map(|(before, after)| (after - before) as f64 / 1e6 / took)
        .collect()
}

fn job(mount: &Mount, bytes: u64) -> Governed {
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut job = Governed::spawn(command);
    job.expect("ready");
    for _ in 0..bytes / BLOCK {
        let answer = job.ask(&format!("alloc linear {BLOCK}"));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    job
}
