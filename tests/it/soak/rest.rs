//! Releases all programs and waits until they are idle.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use support::wait_until_none;

use super::directories::{groups, names};
use super::{GPUS, Soak};
use crate::driver::governed_pids;

/// Settings under which no program is delayed. A process of the lowest priority among two hundred would
/// otherwise wait long for its turn.
pub(super) const FREE: [(&str, &str); 8] = [
    ("gcgroup.devices", "all"),
    ("gcgroup.lease", "max"),
    ("gcgroup.suspend", "0"),
    ("memory.limit", "max"),
    ("memory.high", "max"),
    ("compute.freeze", "0"),
    ("compute.max", "max"),
    ("compute.priority", "8"),
];

/// Prints the state of the remaining processes during a panic.
struct Left(PathBuf);

impl Drop for Left {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_else(|error| error.to_string());
        let pids = names(&self.0).unwrap_or_default().into_iter();
        for pid in pids.filter(|name| name.to_string_lossy().parse::<u32>().is_ok()) {
            let directory = self.0.join(&pid);
            let files = [
                "compute.freeze",
                "compute.priority",
                "compute.max",
                "gcgroup.events",
                "gcgroup.stat",
                "compute.stat",
                "memory.events",
            ];
            let told: Vec<_> = files.map(|file| read(directory.join(file))).into();
            let tasks = Path::new("/proc").join(&pid).join("task");
            let waits: Vec<_> = names(&tasks)
                .unwrap_or_default()
                .iter()
                .map(|task| read(tasks.join(task).join("syscall")))
                .collect();
            eprintln!(
                "{}: {} {}",
                pid.display(),
                told.concat().replace('\n', " "),
                waits.concat()
            );
        }
    }
}

impl Soak {
    /// Releases all programs; each finishes its work and then stays idle.
    pub(super) fn come_to_rest(&mut self) {
        let _left = Left(self.mount.path());
        for program in self.programs.iter_mut().filter(|program| !program.stays) {
            program.load.close_stdin();
        }
        wait_until_none("each released program has ended", || {
            // Includes processes that a daemon started just now did not know before.
            self.let_go();
            let ending = self.programs.iter_mut().filter(|program| !program.stays);
            ending
                .filter_map(|program| program.load.is_running().then_some(()))
                .count()
        });
        self.programs.retain(|program| program.stays);
        for program in &mut self.programs {
            program.load.say("");
        }
        let mut busy: Vec<_> = self
            .programs
            .iter_mut()
            .map(|program| &mut program.load)
            .collect();
        wait_until_none("each staying program has finished its work", || {
            busy.retain_mut(|load| match load.line_now() {
                Some(line) => line != "held",
                None => {
                    assert!(load.is_running(), "{}", load.stderr());
                    true
                }
            });
            busy.len()
        });
        let pids: BTreeSet<_> = self.programs.iter().map(|program| program.load.pid()).collect();
        wait_until_none("exactly the staying programs have directories", || {
            let governed = governed_pids(&self.mount).into_iter().collect();
            pids.symmetric_difference(&governed).count()
        });
    }

    /// Undoes all settings that delay programs.
    fn let_go(&self) {
        let root = self.mount.path();
        let pids = governed_pids(&self.mount).into_iter();
        let processes = pids.map(|pid| root.join(pid.to_string()));
        for directory in processes.chain(groups(&root).expect("the mount is readable")) {
            // Settings of the whole process and of each GPU.
            let gpus = (0..GPUS).map(|gpu| directory.join(gpu.to_string()));
            for directory in gpus.chain([directory.clone()]) {
                for (file, value) in FREE {
                    // The process may have exited.
                    let _ = fs::write(directory.join(file), value);
                }
            }
        }
    }
}
