//! A running `gcgroup-load` and its output.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use serde_json::Value;

/// A deadline that only a hang reaches.
const DEADLINE: Duration = Duration::from_secs(120);

/// A child process whose lines are read as they come. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Job {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// Progress of a batch job, as it reports it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// GPU time of the completed kernels, seconds.
    pub busy: f64,
    /// Time of the report, seconds of `CLOCK_MONOTONIC`.
    pub at: f64,
}

impl Job {
    /// Starts the job.
    pub(crate) fn spawn(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: `prctl` may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                Ok(())
            });
        }
        let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
        let (send, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if send.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        let stdin = child.stdin.take();
        Ok(Self { child, stdin, lines })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line.
    pub(crate) fn line(&self) -> Result<String> {
        self.lines
            .recv_timeout(DEADLINE)
            .map_err(|error| anyhow::anyhow!("pid {} prints no more lines: {error}", self.pid()))
    }

    /// Reads up to the line that begins with `prefix`.
    pub(crate) fn expect(&self, prefix: &str) -> Result<String> {
        loop {
            let line = self.line()?;
            if line.starts_with(prefix) {
                return Ok(line);
            }
        }
    }

    /// Sends a line.
    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("no stdin")?;
        writeln!(stdin, "{line}")?;
        Ok(stdin.flush()?)
    }

    /// Reads up to the job's result, and waits for its exit.
    pub(crate) fn report(mut self) -> Result<Value> {
        let report = serde_json::from_str(&self.expect("{")?)?;
        self.stdin = None;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the job ended with {status}");
        }
        Ok(report)
    }

    /// Returns the progress that a batch job has reported since the last call.
    pub(crate) fn progress(&self) -> Vec<Progress> {
        self.lines.try_iter().filter_map(|line| parse(&line)).collect()
    }

    /// Returns the share of GPU time that a batch job had between two times, by its first and last report
    /// between them. Waits for further reports if there are fewer: a busy machine may delay them.
    pub(crate) fn share(&self, from: f64, to: f64) -> Result<f64> {
        let mut told = self.progress();
        loop {
            told.retain(|progress| progress.at >= from);
            if let [first, second, ..] = told[..]
                && told.last().is_some_and(|last| last.at >= to)
            {
                let inside = told.iter().skip(1).rfind(|progress| progress.at <= to);
                let last = inside.unwrap_or(&second);
                return Ok((last.busy - first.busy) / (last.at - first.at).max(1e-9));
            }
            told.extend(parse(&self.line()?));
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.pid()) {
            // Our own child, not yet waited for.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
        }
    }

    /// Closes the job's stdin, sends SIGTERM, and waits for its exit.
    pub(crate) fn end(mut self) {
        self.stdin = None;
        self.signal(Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parses `kernels ENDED busy USEC at NS`.
fn parse(line: &str) -> Option<Progress> {
    let words: Vec<&str> = line.split(' ').collect();
    let ["kernels", _, "busy", usec, "at", ns] = words[..] else {
        return None;
    };
    Some(Progress {
        busy: usec.parse::<f64>().ok()? / 1e6,
        at: ns.parse::<f64>().ok()? / 1e9,
    })
}

/// Returns the seconds of `CLOCK_MONOTONIC`.
pub(crate) fn now() -> f64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
    now.tv_sec() as f64 + now.tv_nsec() as f64 / 1e9
}

/// Sleeps.
pub(crate) fn pass(seconds: f64) {
    thread::sleep(Duration::from_secs_f64(seconds));
}
