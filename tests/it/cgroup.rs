//! Kernel cgroups for tests.

use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use support::Mount;

use crate::driver::{DriverShell, driver_shell};

/// A memory cgroup for one test. Dropping it moves its processes out and removes it.
#[derive(Debug)]
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup of version 1 or 2 with a limit of `bytes`. Returns `None` if no usable memory
    /// controller exists.
    pub(crate) fn new(name: &str, bytes: u64) -> Option<Self> {
        let name = format!("gcgroup-test-{name}-{}", std::process::id());
        for (root, limit) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ] {
            let root = Path::new(root);
            if limit == "memory.max" {
                // This fails if the controller is enabled already, or if only the root cgroup is available.
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
                // Swapped memory would not count against the limit. Without this file, swap is not accounted.
                let _ = fs::write(cgroup.0.join(swap), value);
            }
            return Some(cgroup);
        }
        None
    }

    /// Returns the `cgroup.procs` file. Writing a pid to it moves the process into the cgroup.
    pub(crate) fn procs(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// Moves a process into the cgroup.
    #[track_caller]
    pub(crate) fn take(&self, pid: Pid) {
        fs::write(self.procs(), pid.to_string()).expect("root may move the process");
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

/// A kernel cgroup for this test, in the first hierarchy that accepts one.
#[derive(Debug)]
pub(crate) struct KernelCgroup {
    path: PathBuf,
    /// Name as in /proc/PID/cgroup.
    pub(crate) name: String,
}

impl KernelCgroup {
    pub(crate) fn new(below: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let top = format!("gcgroup-test-{}", std::process::id());
        let points = mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (point, kind) = (fields.next()?, fields.next()?);
            kind.starts_with("cgroup").then(|| PathBuf::from(point))
        });
        points.into_iter().find_map(|point| {
            let path = point.join(&top).join(below);
            fs::create_dir_all(&path).ok()?;
            Some(Self {
                path,
                name: format!("/{top}/{below}"),
            })
        })
    }

    /// Starts a driver shell that is in the cgroup from its beginning.
    pub(crate) fn start_driver_shell(&self, mount: &Mount) -> DriverShell {
        let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$1\"";
        let mut command = mount.command("sh");
        command.args(["-c", script]).arg(&self.path).arg(driver_shell());
        DriverShell::spawn(command)
    }
}

impl Drop for KernelCgroup {
    fn drop(&mut self) {
        let mut at: &Path = &self.path;
        while fs::remove_dir(at).is_ok() {
            let Some(above) = at.parent() else { break };
            at = above;
        }
    }
}
