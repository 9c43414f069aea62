//! Time to open, read and close, or to write a control file, compared with files of the kernel.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::time::{ClockId, clock_gettime};
use serde_json::json;
use support::Mount;

use crate::report::{Report, quantile};

const SAMPLES: usize = 20_000;

pub(crate) fn run(report: &mut Report) {
    let Some(kernel) = Cgroup::new() else {
        return report.skip("control files", "no cgroup hierarchy to compare with");
    };
    let mount = Mount::new();
    let process = mount.obedient();

    let ours = samples(SAMPLES, || read(&mount.file(process.pid(), "memory.current")));
    let theirs = samples(SAMPLES, || read(&kernel.path.join(kernel.kind.read)));
    ratio(report, "open, read, close", ours, theirs, 8.0, kernel.kind.read);

    // Always the same value: only the path to the file is measured.
    let ours = samples(SAMPLES, || {
        write(&mount.file(process.pid(), "memory.limit"), "1099511627776")
    });
    let theirs = samples(SAMPLES, || {
        write(&kernel.path.join(kernel.kind.write), "1099511627776")
    });
    ratio(report, "open, write, close", ours, theirs, 8.0, kernel.kind.write);
}

fn ratio(report: &mut Report, name: &str, ours: Vec<f64>, theirs: Vec<f64>, budget: f64, file: &str) {
    let p99 = [quantile(ours.clone(), 0.99), quantile(theirs.clone(), 0.99)];
    let (ours, theirs) = (quantile(ours, 0.5), quantile(theirs, 0.5));
    let detail = json!({ "usec": ours, "kernel_usec": theirs, "kernel_file": file, "p99_usec": p99 });
    report.add(
        &format!("{name}, over the kernel's"),
        ours / theirs,
        "times",
        budget,
        detail,
    );
}

/// Returns the microseconds of each of `count` calls, after some calls to warm up.
pub(crate) fn samples(count: usize, mut call: impl FnMut()) -> Vec<f64> {
    (0..count.div_ceil(20)).for_each(|_| call());
    (0..count)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect()
}

pub(crate) fn read(path: &Path) {
    let mut buffer = [0; 4096];
    let mut file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let length = file
        .read(&mut buffer)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(length > 0, "{}", path.display());
}

fn write(path: &Path, value: &str) {
    let file = OpenOptions::new().write(true).open(path);
    let mut file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let written = file
        .write(value.as_bytes())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(written, value.len());
}

/// Returns `CLOCK_MONOTONIC`, nanoseconds, like the stamps of `gcgroup-load`.
pub(crate) fn monotonic() -> f64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the clock exists");
    now.tv_sec() as f64 * 1e9 + now.tv_nsec() as f64
}

/// Files of a hierarchy that our groups are compared with.
struct Kind {
    /// Identification in mountinfo: filesystem type, and an option for cgroup v1.
    mount: (&'static str, &'static str),
    read: &'static str,
    write: &'static str,
}

const KINDS: [Kind; 2] = [
    Kind {
        mount: ("cgroup2", ""),
        read: "memory.current",
        write: "memory.max",
    },
    Kind {
        mount: ("cgroup", "memory"),
        read: "memory.usage_in_bytes",
        write: "memory.limit_in_bytes",
    },
];

/// An empty cgroup of the kernel, removed when dropped.
struct Cgroup {
    path: PathBuf,
    kind: &'static Kind,
}

impl Cgroup {
    fn new() -> Option<Self> {
        KINDS.iter().find_map(|kind| {
            let path = mounted(kind)?.join(format!("gcgroup-bench-{}", std::process::id()));
            fs::create_dir(&path).ok()?;
            let group = Self { path, kind };
            [kind.read, kind.write]
                .iter()
                .all(|file| group.path.join(file).exists())
                .then_some(group)
        })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

fn mounted(kind: &Kind) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, at, system, options, ..] = words.as_slice() else {
            return None;
        };
        let (wanted, option) = kind.mount;
        let fits = *system == wanted && (option.is_empty() || options.split(',').any(|word| word == option));
        fits.then(|| PathBuf::from(at))
    })
}
