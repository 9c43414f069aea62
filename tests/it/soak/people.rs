//! Simulated users that write arbitrary values.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::directories::{groups, names};
use super::random::Random;

/// Number of group names in a directory.
const NAMES: usize = 4;

/// Returns valid and invalid values for a control file.
fn values(file: &str) -> &'static [&'static str] {
    match file {
        "memory.limit" => &[
            "max",
            "max",
            "1M",
            "300K",
            "0",
            "64M",
            "-1",
            "18446744073709551615",
        ],
        "memory.high" => &["max", "max", "300K", "64M", "0", "-1"],
        "memory.min" | "memory.low" => &["0", "0", "1M", "max", "-1"],
        "memory.swap.max" | "memory.reclaim" => &["0", "max", "1M"],
        "memory.peak" => &["0", "x"],
        "compute.freeze" => &["0", "0", "0", "1", "2"],
        "compute.priority" => &["0", "2", "8", "15", "16", "eight"],
        "compute.max" => &["max", "max", "50000 100000", "1000 1000", "1", "max 5000", "0 0"],
        "compute.policy" => &["weighted", "strict", "none"],
        // A valid value would kill the programs that the test watches.
        "memory.oom.group" => &["0", "", "2", "-1"],
        "gcgroup.kill" => &["", "0", "2"],
        "gcgroup.lease.action" => &["freeze", "suspend", "", "stop"],
        "gcgroup.lease" => &["max", "max", "1", "-1"],
        "gcgroup.devices" => &["all", "all", "0", "none", "0-99", "GPU-x"],
        "gcgroup.suspend" => &["0", "0", "0", "1", "2"],
        _ => &["", "1"],
    }
}

/// A simulated user that reads and writes files.
pub(super) struct Person<'a> {
    pub(super) root: PathBuf,
    pub(super) random: Random,
    pub(super) over: &'a AtomicBool,
    pub(super) nr_done: &'a AtomicU64,
    /// Refusals by errno.
    pub(super) refusals: &'a Mutex<BTreeMap<i32, String>>,
}

impl Person<'_> {
    pub(super) fn live(mut self) {
        while !self.over.load(Relaxed) {
            if let Err(error) = self.act() {
                let number = error.raw_os_error().unwrap_or(0);
                let mut refusals = self.refusals.lock().expect("no thread panicked");
                refusals.entry(number).or_insert_with(|| error.to_string());
            }
            self.nr_done.fetch_add(1, Relaxed);
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn act(&mut self) -> io::Result<()> {
        match self.random.below(12) {
            0 => return self.make_group(),
            1 => {
                return match self.group()? {
                    // Without a daemon this may be an ordinary directory.
                    root if root == self.root => Ok(()),
                    group => fs::remove_dir(group),
                };
            }
            2 => return self.move_program(),
            _ => {}
        }
        let mut path = self.root.clone();
        loop {
            let names = names(&path)?;
            let Some(name) = self.random.of_these(&names) else {
                return Ok(());
            };
            path.push(name);
            if !fs::metadata(&path)?.is_dir() {
                break;
            }
        }
        let file = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let value = self.random.of_these(values(&file)).copied();
        match (self.random.below(3), value) {
            (0, Some(value)) => {
                let mut file = OpenOptions::new().write(true).open(&path)?;
                file.write(value.as_bytes()).map(drop)
            }
            _ => fs::read(&path).map(drop),
        }
    }

    /// Returns the root or a random group below it.
    fn group(&mut self) -> io::Result<PathBuf> {
        let groups = groups(&self.root)?;
        Ok(self
            .random
            .of_these(&groups)
            .cloned()
            .unwrap_or(self.root.clone()))
    }

    fn make_group(&mut self) -> io::Result<()> {
        let parent = if self.random.below(2) == 0 {
            self.group()?
        } else {
            self.root.clone()
        };
        fs::create_dir(parent.join(format!("group{}", self.random.below(NAMES))))
    }

    fn move_program(&mut self) -> io::Result<()> {
        let pids = fs::read_to_string(self.root.join("gcgroup.procs"))?;
        let pids: Vec<_> = pids.lines().collect();
        let Some(pid) = self.random.of_these(&pids) else {
            return Ok(());
        };
        fs::write(self.group()?.join("gcgroup.procs"), pid)
    }
}
