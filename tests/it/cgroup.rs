//! Memory cgroups for tests.

use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;

/// A memory cgroup of the test's own. Dropping it moves its processes out and removes it.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes a cgroup of version 1, or of version 2, whose processes have at most `bytes`. `None` where the
    /// machine has no memory controller that we may use.
    pub fn new(name: &str, bytes: u64) -> Option<Self> {
        let name = format!("gcgroup-test-{name}-{}", std::process::id());
        for (root, limit) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ] {
            let root = Path::new(root);
            if limit == "memory.max" {
                // It may be on already, or nothing but the root be there for us.
                let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
            }
            let path = root.join(&name);
            if !root.join("cgroup.procs").exists() || fs::create_dir(&path).is_err() {
                continue;
            }
            let cgroup = Self(path);
            if fs::write(cgroup.0.join(limit), bytes.to_string()).is_err() {
                continue;
            }
            for (swap, value) in [
                ("memory.memsw.limit_in_bytes", bytes.to_string()),
                ("memory.swap.max", "0".to_owned()),
            ] {
                // What went to the swap would not show. Where it is not counted there is none.
                let _ = fs::write(cgroup.0.join(swap), value);
            }
            return Some(cgroup);
        }
        None
    }

    /// Returns the file to which a process's pid is written to move it into the cgroup.
    pub fn procs(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// Moves a process into the cgroup.
    #[track_caller]
    pub fn take(&self, pid: Pid) {
        fs::write(self.procs(), pid.to_string()).expect("it may be moved");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let pids = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for pid in pids.lines() {
            let parent = self.0.with_file_name("cgroup.procs");
            let _ = fs::write(parent, pid);
        }
        let _ = fs::remove_dir(&self.0);
    }
}
