//! A daemon for the benchmark, on the simulated or the real GPU, and processes with and without governing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use simgpu::Machine;
use tempfile::TempDir;

use crate::job::{Job, pass};

/// Paths of the built programs, and the GPU to use.
#[derive(Debug, Clone)]
pub struct Environment {
    pub dist: PathBuf,
    pub scripts: PathBuf,
    pub is_simulated: bool,
    /// Steps of work per microsecond on the idle GPU, after calibration; the same for all jobs.
    pub rate: Option<u32>,
}

impl Environment {
    /// Calibrates the rate.
    pub fn measure(&mut self) -> Result<()> {
        let daemon = Daemon::start(self)?;
        let command = daemon.command(
            Rule::Ungoverned,
            &["throughput", "--kernel", "work", "--duration", "0"],
        );
        let told = Job::spawn(command)?.expect("work ")?;
        let steps: Option<f64> = told.split(' ').nth(1).and_then(|steps| steps.parse().ok());
        let steps = steps.context(told)?.round().max(1.0);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it saturates"
        )]
        let rate = steps as u32;
        drop(daemon);
        self.rate = Some(rate);
        Ok(())
    }
}

/// Ways to govern a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    Ungoverned,
    Governed,
    /// With a priority that applies from its first call, as `gcgroupfs run --priority` sets it: one written
    /// after the job is ready would come late, because the job works then.
    Ranked(u32),
}

/// A running daemon, with its mount where one can be made. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Daemon<'p> {
    environment: &'p Environment,
    root: TempDir,
    child: Option<Child>,
    is_mounted: bool,
}

impl<'p> Daemon<'p> {
    /// Starts a daemon and waits until it serves.
    pub(crate) fn start(environment: &'p Environment) -> Result<Self> {
        let mut daemon = Self {
            environment,
            root: TempDir::new()?,
            child: None,
            is_mounted: false,
        };
        for directory in ["mnt", "run", "sim"] {
            fs::create_dir(daemon.root.path().join(directory))?;
        }
        daemon.is_mounted = Path::new("/dev/fuse").exists() && daemon.serve(true).is_ok();
        if !daemon.is_mounted {
            daemon.stop();
            daemon.serve(false)?;
        }
        Ok(daemon)
    }

    fn serve(&mut self, mount: bool) -> Result<()> {
        let mut command = self.bare("gcgroupfs");
        command.arg("mount");
        if mount {
            command.arg(self.mount());
        } else {
            command.arg("--no-fuse");
        }
        command
            .arg("--state-dir")
            .arg(self.root.path().join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.root.path().join("log"))?);
        let child = self.child.insert(command.spawn()?);
        let start = Instant::now();
        loop {
            let ended = child.try_wait()?;
            let answers = Command::new(self.environment.dist.join("bin/gcgroupfs"))
                .arg("ls")
                .env("GCGROUP_SOCKET", self.root.path().join("socket"))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()?;
            let serves = !mount || self.root.path().join("mnt/gcgroup.procs").exists();
            if answers.success() && serves {
                return Ok(());
            }
            if ended.is_some() || start.elapsed() > Duration::from_secs(20) {
                let log = fs::read_to_string(self.root.path().join("log")).unwrap_or_default();
                bail!("the daemon does not start: {log}");
            }
            pass(0.02);
        }
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            if let Ok(pid) = i32::try_from(child.id()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
            let _ = child.wait();
        }
        while umount2(&self.mount(), MntFlags::MNT_DETACH).is_ok() {}
    }

    pub(crate) fn mount(&self) -> PathBuf {
        self.root.path().join("mnt")
    }

    /// Returns whether control files can be opened; otherwise `gcgroupfs get` and `set` are used.
    pub(crate) fn is_mounted(&self) -> bool {
        self.is_mounted
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Returns a command for a built program on this GPU, not governed.
    pub(crate) fn bare(&self, program: &str) -> Command {
        let mut command = Command::new(self.environment.dist.join("bin").join(program));
        command.env("GCGROUP_SOCKET", self.root.path().join("socket"));
        if self.environment.is_simulated {
            command
                .env("LD_LIBRARY_PATH", self.environment.dist.join("simgpu"))
                .env("SIMGPU_DIR", self.root.path().join("sim"))
                // The jobs' kernels have one thread each.
                .env("SIMGPU_CONCURRENT_KERNELS", "32");
        }
        command
    }

    fn command(&self, rule: Rule, arguments: &[&str]) -> Command {
        let mut command = self.bare("gcgroup-load");
        if rule != Rule::Ungoverned {
            command.env("LD_PRELOAD", self.environment.dist.join("lib/libgcgroup.so"));
        }
        if let Rule::Ranked(priority) = rule {
            command.env("GCGROUP_PRIORITY", priority.to_string());
        }
        command.args(arguments);
        if let (Some(rate), true) = (self.environment.rate, arguments.contains(&"work")) {
            command.args(["--rate", &rate.to_string()]);
        }
        command
    }

    /// Starts a `gcgroup-load` and waits until it is ready.
    pub(crate) fn load(&self, rule: Rule, arguments: &[&str]) -> Result<Job> {
        let job = Job::spawn(self.command(rule, arguments))?;
        job.expect("ready")?;
        Ok(job)
    }

    /// Starts a script of the repository on this mount.
    pub(crate) fn script(&self, name: &str, arguments: &[String]) -> Result<Job> {
        let mut command = Command::new(self.environment.scripts.join(name));
        let programs = self.environment.dist.join("bin").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("GCGROUP", self.mount())
            .env("PATH", format!("{programs}:{path}"))
            .args(arguments);
        Job::spawn(command)
    }

    /// Returns the microseconds for which the simulated GPU has run a process's kernels; `None` with a real
    /// one, which does not tell.
    pub(crate) fn worked(&self, pid: u32) -> Result<Option<f64>> {
        if !self.environment.is_simulated {
            return Ok(None);
        }
        let machine = Machine::observe(&self.root.path().join("sim"))?;
        let accounts = machine.accounts();
        let account = accounts.iter().find(|account| account.pid == pid);
        let device = account.and_then(|account| account.devices.first());
        Ok(device.map(|device| device.busy_ns as f64 / 1e3))
    }

    /// Returns the text of a control file.
    pub(crate) fn read(&self, directory: impl ToString, name: &str) -> Result<String> {
        let path = format!("{}/{name}", directory.to_string());
        if self.is_mounted {
            return fs::read_to_string(self.mount().join(&path)).context(path);
        }
        let output = self.bare("gcgroupfs").args(["get", &path]).output()?;
        if !output.status.success() {
            bail!("{path}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Returns the number that follows a key in a control file.
    pub(crate) fn number(&self, directory: impl ToString, name: &str, key: &str) -> Result<u64> {
        let text = self.read(directory, name)?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        Ok(value
            .with_context(|| format!("no {key} in {name}"))?
            .trim()
            .parse()?)
    }

    /// Writes a control file.
    pub(crate) fn write(&self, directory: impl ToString, name: &str, value: impl ToString) -> Result<()> {
        let (path, value) = (format!("{}/{name}", directory.to_string()), value.to_string());
        if self.is_mounted {
            return fs::write(self.mount().join(&path), format!("{value}\n")).context(path);
        }
        let output = self.bare("gcgroupfs").args(["set", &path, &value]).output()?;
        if !output.status.success() {
            bail!("{path}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// Makes a group in the root group.
    pub(crate) fn make_group(&self, name: &str) -> Result<()> {
        let output = self.bare("gcgroupfs").args(["mkdir", name]).output()?;
        if !output.status.success() {
            bail!("{name}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// Sets the scheduling policy.
    pub(crate) fn policy(&self, name: &str) -> Result<()> {
        self.write(".", "compute.policy", name)
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_has_its_priority_from_its_start() -> Result<()> {
        let environment = Environment {
            dist: PathBuf::from("dist"),
            scripts: PathBuf::from("scripts"),
            is_simulated: true,
            rate: Some(100),
        };
        let daemon = Daemon {
            environment: &environment,
            root: TempDir::new()?,
            child: None,
            is_mounted: false,
        };
        let has = |rule, name: &str| {
            let command = daemon.command(rule, &[]);
            command
                .get_envs()
                .find(|(key, _)| *key == name)
                .and_then(|(_, value)| Some(value?.to_string_lossy().into_owned()))
        };
        let library = Some("dist/lib/libgcgroup.so".to_owned());
        assert_eq!(has(Rule::Ranked(2), "GCGROUP_PRIORITY"), Some("2".to_owned()));
        assert_eq!(has(Rule::Ranked(2), "LD_PRELOAD"), library);
        assert_eq!(has(Rule::Governed, "GCGROUP_PRIORITY"), None);
        assert_eq!(has(Rule::Governed, "LD_PRELOAD"), library);
        assert_eq!(has(Rule::Ungoverned, "GCGROUP_PRIORITY"), None);
        assert_eq!(has(Rule::Ungoverned, "LD_PRELOAD"), None);
        Ok(())
    }
}
