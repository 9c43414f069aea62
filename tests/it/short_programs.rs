//! Tests that short programs pay for the GPU time that they have used, however they end, against what the
//! simulated GPU has done.

use std::time::{Duration, UNIX_EPOCH};

use nix::sys::signal::Signal;
use support::{Mount, wait_until};

use crate::gpu_seconds::charged;

/// Programs of each way to end.
const PROGRAMS: u64 = 16;

/// Few kernels of different lengths, of which many are queued before the first look at them, and the first
/// sample of which may be of a short one. A late look may cost or save one program some milliseconds.
#[test]
fn short_programs_pay_for_their_time_however_they_end() {
    let mut seed = u64::from(UNIX_EPOCH.elapsed().expect("a time").subsec_nanos()) | 1;
    println!("seed {seed}");
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mount = Mount::new();
    for is_killed in [true, false] {
        let (mut all_told, mut all_truly, mut nr_low) = (0, 0, 0);
        for _ in 0..PROGRAMS {
            let goal = 120_000 + random(180_000);
            let depth = if random(2) == 0 { "8" } else { "64" };
            let seconds = match is_killed {
                true => "3600".to_owned(),
                false => Duration::from_micros(goal).as_secs_f64().to_string(),
            };
            let fixed = ["throughput", "--kernel-usec", "100-20000", "--depth", depth];
            let mut job = mount.load(&[&fixed[..], &["--duration", &seconds]].concat());
            let (pid, truth) = (job.pid(), mount.truth());
            if is_killed {
                wait_until("it has run", || truth.usage_usec(pid, 0) >= goal);
                job.signal(Signal::SIGKILL);
                job.wait();
            } else {
                job.finish();
            }
            wait_until("it has left", || !mount.governs(pid));
            let (told, truly) = (charged(&mount, pid), truth.usage_usec(pid, 0));
            println!("{depth} queued: {told} of {truly} us are charged");
            nr_low += u64::from(told < truly * 9 / 10);
            (all_told, all_truly) = (all_told + told, all_truly + truly);
        }
        let ratio = all_told as f64 / all_truly as f64;
        println!("killed {is_killed}: {ratio:.3}, {nr_low} below 0.9");
        assert!(
            nr_low <= PROGRAMS / 4 && (0.9..1.3).contains(&ratio),
            "killed {is_killed}: {ratio:.3}, {nr_low}"
        );
    }
}
