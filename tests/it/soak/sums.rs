//! Final checks: the values in files, and what is left.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use support::wait_until;

use super::directories::groups;
use super::holdings::Holdings;
use super::{GPUS, STATE_KILOBYTES, Soak};
use crate::driver::governed_pids;

/// Largest permitted ratio of a daemon's memory to that of an earlier daemon of the same age.
const GROWTH: f64 = 1.5;

impl Soak {
    /// Asserts that the files match the simulated GPUs' usage.
    pub(super) fn assert_adds_up(&self) {
        let truth = self.mount.truth();
        // A process that allocates before it registers does not know that pages are of one byte here.
        let current = |directory: String| {
            self.mount.number(&directory, "memory.current", "")
                - self.mount.number(&directory, "memory.stat", "rounding")
        };
        for program in &self.programs {
            let pid = program.load.pid();
            for gpu in 0..GPUS {
                wait_until("the charge equals what the process holds", || {
                    current(format!("{pid}/{gpu}")) == truth.used(pid, gpu)
                });
            }
            assert_eq!(current(pid.to_string()), truth.used(pid, 0) + truth.used(pid, 1));
        }
        let members = self
            .programs
            .iter()
            .map(|program| current(program.load.pid().to_string()));
        assert_eq!(current(String::new()), members.sum::<u64>());
        assert_eq!(
            current(String::new()),
            truth.used_by_all(0) + truth.used_by_all(1)
        );
        let mut nr_members = 0;
        for group in groups(&self.mount.path()).expect("the mount is readable") {
            let number = |directory: &Path| {
                let text =
                    fs::read_to_string(directory.join("memory.current")).expect("the file is readable");
                text.trim().parse::<u64>().expect("a number")
            };
            let own = fs::read_to_string(group.join("gcgroup.procs")).expect("the file is readable");
            let own: Vec<_> = own
                .lines()
                .map(|pid| number(&self.mount.path().join(pid)))
                .collect();
            let children = groups(&group).expect("the directory is readable");
            let children = children.iter().filter(|child| child.parent() == Some(&group));
            let sum = own.iter().sum::<u64>() + children.map(|child| number(child)).sum::<u64>();
            assert_eq!(number(&group), sum, "{}", group.display());
            nr_members += own.len();
        }
        eprintln!("{:?}: {nr_members} of them in groups", self.daemon);
        assert!(nr_members > 0);
        let used: Vec<_> = (0..GPUS).map(|gpu| truth.used_by_all(gpu)).collect();
        eprintln!(
            "{:?}: {} programs hold {used:?} bytes",
            self.daemon,
            self.programs.len()
        );
        assert!(used.iter().all(|used| *used > 0));
    }

    pub(super) fn assert_nothing_is_left(mut self, before: &Holdings) {
        for (number, mut program) in self.programs.drain(..).enumerate() {
            if number % 2 == 0 {
                program.load.signal(Signal::SIGKILL);
                program.load.wait();
            } else {
                assert!(program.load.wait().success(), "{}", program.load.stderr());
            }
        }
        wait_until("the processes' directories are removed", || {
            governed_pids(&self.mount).is_empty()
        });
        assert_eq!(self.mount.number("", "memory.current", ""), 0);
        let truth = self.mount.truth();
        assert_eq!(truth.used_by_all(0) + truth.used_by_all(1), 0);
        assert_eq!(self.mount.read("", "unmanaged"), "");
        for group in groups(&self.mount.path())
            .expect("the directory is readable")
            .iter()
            .rev()
        {
            // Includes processes that had not returned to the last daemon.
            wait_until("the group is unpopulated", || {
                let events = fs::read_to_string(group.join("gcgroup.events")).expect("the file is readable");
                events.contains("populated 0")
            });
            fs::remove_dir(group).expect("the group is empty");
        }
        eprintln!("{:?}: an idle daemon has {before:?}", self.daemon);
        let mut last = None;
        wait_until("the daemon holds as much as an idle one", || {
            let now = Holdings::of(self.pid());
            let is_idle = now == *before;
            if !is_idle && last.as_ref() != Some(&now) {
                eprintln!("{:?}: this one has {now:?}", self.daemon);
                thread::sleep(Duration::from_millis(200));
            }
            last = Some(now);
            is_idle
        });
        // Of many daemons with short lives, the first ones have seen only the beginning.
        let early = self.resident.len().div_ceil(3);
        let first = self.resident[..early].iter().copied().fold(0.0, f64::max);
        // None on a machine that is too slow for so many programs.
        let last = self.resident.last().copied().unwrap_or(0.0);
        // A compaction, which follows a full disk, takes twice the size of the state directory's files.
        let compaction = 2.0 * f64::from(STATE_KILOBYTES);
        assert!(
            last <= first * GROWTH + compaction,
            "kB at the end of each life: {:?}",
            self.resident
        );
        wait_until("the settings file is compacted", || {
            let state = fs::metadata(self.mount.state_dir().join("settings.jsonl"));
            state.expect("the file exists").len() < 2 << 20
        });
        assert_eq!(
            self.mount.log().matches("panicked").count(),
            0,
            "{}",
            self.mount.log()
        );
    }
}
