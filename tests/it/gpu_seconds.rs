//! Tests that GPU time is measured while nobody reads it, against what the simulated GPU has done. Bounds are
//! wide, for busy machines; the benchmarks measure how exact it is.

use support::{Config, Governed, Mount, wait_until};

use crate::driver::Dir;

/// Nanoseconds of GPU time after which a job is frozen and compared.
const LEAST_USEC: u64 = 1_500_000;

fn throughput(mount: &Mount, kernel_usec: &str, more: &[&str]) -> Governed {
    let fixed = ["throughput", "--kernel-usec", kernel_usec, "--duration", "3600"];
    mount.load(&[&fixed[..], more].concat())
}

/// Lets jobs run, freezes them, and returns for each the measured over the true GPU time.
fn ratios(mount: &Mount, jobs: &[Governed]) -> Vec<f64> {
    let truth = mount.truth();
    wait_until("the jobs have run", || {
        jobs.iter()
            .all(|job| truth.usage_usec(job.pid(), 0) >= LEAST_USEC)
    });
    let dirs: Vec<Dir> = jobs.iter().map(|job| Dir::of(mount, job.pid())).collect();
    // Nobody has read the time until now.
    dirs.iter().for_each(|dir| dir.write("compute.freeze", 1));
    wait_until("the jobs are frozen", || dirs.iter().all(Dir::is_frozen));
    let usage = |dir: &Dir| dir.key("compute.stat", "usage_usec");
    dirs.iter()
        .zip(jobs)
        .map(|(dir, job)| {
            let mut last = usage(dir);
            wait_until("the time stands still", || {
                let is_same = last == usage(dir);
                last = usage(dir);
                is_same
            });
            let ratio = last as f64 / truth.usage_usec(job.pid(), 0) as f64;
            println!("measured over true time: {ratio:.3}");
            ratio
        })
        .collect()
}

#[track_caller]
fn assert_near(ratios: &[f64], what: &str) {
    let is_near = |ratio: &f64| *ratio > 0.7 && *ratio < 3.0;
    assert!(ratios.iter().all(is_near), "{what}: {ratios:?}");
}

#[test]
fn time_of_one_job_is_measured_without_readers() {
    for kernel in ["10", "100", "1000", "10000", "100000"] {
        let mount = Mount::new();
        let job = throughput(&mount, kernel, &["--depth", "64"]);
        println!("kernels of {kernel} us");
        assert_near(&ratios(&mount, &[job]), kernel);
    }
}

#[test]
fn time_of_two_jobs_is_divided_without_readers() {
    for (first, second) in [("1000", "1000"), ("1000", "5000")] {
        let mount = Mount::new();
        let jobs = [first, second].map(|kernel| throughput(&mount, kernel, &["--depth", "64"]));
        println!("kernels of {first} and {second} us");
        assert_near(&ratios(&mount, &jobs), first);
    }
}

#[test]
fn time_of_graphs_is_measured_without_readers() {
    let mount = Mount::new();
    let job = throughput(&mount, "500", &["--graph", "10", "--depth", "16"]);
    assert_near(&ratios(&mount, &[job]), "graphs");
}

#[test]
fn pauses_between_launches_are_not_charged() {
    // Even if looks find the end of a kernel late, and if the contexts are gone when the process ends.
    for (kernel, pause, graph) in [
        (100_u64, 300_u64, 0_u64),
        (1000, 1000, 0),
        (300, 3000, 0),
        (20, 500, 10),
    ] {
        let mount = Mount::new();
        let fixed = ["paced", "--kernel", "work", "--rate", "1000", "--duration", "2"];
        let [length, rest, number] = [kernel, pause, graph].map(|value| value.to_string());
        let varied = [
            "--kernel-usec",
            &length,
            "--pause-usec",
            &rest,
            "--graph",
            &number,
        ];
        let mut job = mount.load(&[&fixed[..], &varied].concat());
        let pid = job.pid();
        job.finish();
        wait_until("it has left", || !mount.governs(pid));
        let truth = mount.truth();
        // On a starved machine the simulated GPU ends kernels late, and so has work for longer than it tells.
        if truth.nr_launches(pid, 0) * (kernel + pause / graph.max(1)) < 800_000 {
            println!("{kernel}+{pause} us: starved");
            continue;
        }
        let truly = truth.usage_usec(pid, 0) as f64;
        let ratio = charged(&mount, pid) as f64 / truly;
        println!("{kernel}+{pause} us: measured over true time: {ratio:.3}");
        assert!((0.7..2.0).contains(&ratio), "{kernel}+{pause}: {ratio}");
    }
}

/// The first launch loads its function. That time counts at first, and is subtracted from later work.
#[test]
fn slow_starts_leave_freezes_and_gpu_time_right() {
    let prices = "context-usec=1000000,module-usec=300000,first-launch-usec=300000";
    for quota in ["max", "90000"] {
        let mount = Mount::with(Config::default().env("SIMGPU_PRICES", prices));
        let mut job = mount.obedient();
        let pid = job.pid();
        mount.write(pid, "compute.max", quota);
        let dir = Dir::of(&mount, pid);
        for launches in [100, 500] {
            let told = job.ask(&format!("launch {launches} 1000"));
            assert_eq!(told, format!("launched {launches}"));
            dir.freeze();
            dir.write("compute.freeze", 0);
            assert_eq!(job.ask("sync"), "synchronised");
        }
        let (truth, told) = (mount.truth(), || dir.key("compute.stat", "usage_usec"));
        let truly = truth.usage_usec(pid, 0);
        wait_until("all time is charged", || told() >= truly * 7 / 10);
        let told = told();
        assert!(told <= truly * 5 / 2, "{quota}: {told} of {truly}");
    }
}

/// The mean of a program's kernels tells nothing of the one that runs while the gate changes.
#[test]
fn long_kernel_among_short_ones_is_charged_while_gates_change() {
    let mut seed = u64::from(std::time::UNIX_EPOCH.elapsed().expect("a time").subsec_nanos()) | 1;
    println!("seed {seed}");
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mount = Mount::new();
    let mut job = mount.obedient();
    let pid = job.pid();
    let (truth, dir) = (mount.truth(), Dir::of(&mount, pid));
    let usage = || dir.key("compute.stat", "usage_usec");
    let short = |job: &mut Governed| {
        assert_eq!(job.ask("launch 1 10"), "launched 1");
        assert_eq!(job.ask("sync"), "synchronised");
    };
    for _ in 0..8 {
        let (file, values) = match random(2) {
            0 => ("compute.max", ["90000", "max"]),
            _ => ("compute.freeze", ["1", "0"]),
        };
        let (changes, length) = (1 + random(3), 100_000 + random(300_000));
        let first = random(2) * random(length);
        println!("{file}: {changes} changes, the first after {first} of {length} us");
        for _ in 0..100 {
            short(&mut job);
        }
        let before = truth.usage_usec(pid, 0);
        let truly = || truth.usage_usec(pid, 0) - before;
        assert_eq!(job.ask(&format!("launch 1 {length}")), "launched 1");
        for change in 0..changes {
            let goal = first + change * (length - first) / changes;
            wait_until("it has run for a part of that", || truly() >= goal);
            dir.write(file, values[usize::from(change % 2 == 1)]);
        }
        assert_eq!(job.ask("sync"), "synchronised");
        dir.write(file, values[1]);
        short(&mut job);
    }
    // Of all of them, since a late look may miss a part of one.
    let truly = truth.usage_usec(pid, 0);
    wait_until("the time is charged", || usage() >= truly * 7 / 10);
    let told = usage();
    println!("{told} us are charged of {truly}");
    assert!(told <= truly * 3 / 2, "{told} of {truly}");
}

/// Returns the microseconds of GPU time that a process that has left was charged.
pub(crate) fn charged(mount: &Mount, pid: i32) -> u64 {
    let exited = mount.read("", "exited");
    let line = exited
        .lines()
        .find(|line| line.starts_with(&format!("{pid} ")))
        .expect("a line");
    let told = line
        .split(' ')
        .find_map(|pair| pair.strip_prefix("compute.usage_usec="));
    told.expect("the time").parse().expect("a number")
}

#[test]
fn time_of_an_ended_job_is_in_exited_and_in_the_totals() {
    let mount = Mount::new();
    let mut job = mount.obedient();
    let pid = job.pid();
    assert_eq!(job.ask("launch 50 10000"), "launched 50");
    assert_eq!(job.ask("sync"), "synchronised");
    let truly = mount.truth().usage_usec(pid, 0);
    job.signal(nix::sys::signal::Signal::SIGKILL);
    job.wait();
    wait_until("it has left", || !mount.governs(pid));
    let told = charged(&mount, pid);
    assert!(told >= truly * 7 / 10 && told <= truly * 2, "{told} of {truly}");
    assert!(mount.number("", "compute.stat", "usage_usec") >= told);
}

#[test]
fn measuring_can_be_left_to_readers() {
    let mount = Mount::with(Config::default().measured_when_read());
    let mut job = mount.obedient();
    assert_eq!(job.ask("launch 50 2000"), "launched 50");
    assert_eq!(job.ask("sync"), "synchronised");
    assert_eq!(mount.number(job.pid(), "compute.stat", "usage_usec"), 0);
}
