//! Bounded reads of those files in /proc/PID whose reads the process itself can block.
//!
//! The kernel holds a lock (`exec_update_lock`) while a process executes another program, also while it
//! closes the descriptors that are closed on exec. If one of these is a file on a FUSE mount whose server
//! never answers, every reader of that process's `stat`, `exe` and `ns` waits until the server does. Any user
//! can arrange that. So these files are read by expendable threads, with a time limit. A blocked read ends
//! with the daemon: SIGKILL interrupts it.
//!
//! `status`, `comm` and `cgroup` take no such lock and are read directly.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use parking_lot::Mutex;

/// Time limit of a read, for a process whose user has blocked no read within [`MEMORY`].
const PATIENCE: Duration = Duration::from_millis(250);

/// Time limit otherwise.
const SHORT_PATIENCE: Duration = Duration::from_millis(5);

/// Time for which a blocked read is remembered against its user.
const MEMORY: Duration = Duration::from_secs(10);

/// Threads that processes of one user can block at the same time.
const MAX_STUCK_PER_UID: usize = 16;

/// Threads that all processes can block at the same time: one person may have many uids.
const MAX_STUCK: usize = 2048;

/// Bytes that most files in /proc/PID do not exceed.
const TYPICAL: usize = 4096;

/// Stack size of a reading thread, bytes.
const STACK: usize = 128 << 10;

type Job = Box<dyn FnOnce() + Send>;

static READERS: LazyLock<Mutex<Readers>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Readers {
    /// Threads that wait for a job.
    idle: Vec<Sender<Job>>,
    /// Processes that block a thread, with their users.
    stuck: HashMap<u32, u32>,
    /// Users that have blocked a read, and when they last did.
    offenders: BTreeMap<u32, Instant>,
}

/// Reads `/proc/PID/NAME`.
///
/// # Errors
/// * `ETIMEDOUT`: the process blocks the read.
/// * `ESRCH`: there is no such process.
/// * Otherwise that of open(2) or read(2).
pub fn read(pid: u32, name: &'static str) -> nix::Result<Vec<u8>> {
    bounded(pid, move || read_start_now(pid, name, u64::MAX))
}

/// Returns a variable of the environment with which a process started; `None` also without permission.
pub fn variable(pid: u32, name: &str) -> Option<String> {
    let environment = read(pid, "environ").ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    String::from_utf8(value.to_vec()).ok()
}

/// Reads at most `most` bytes of `/proc/PID/NAME`.
///
/// # Errors
/// As for [`read`]; `EFBIG` if there are more.
pub fn read_at_most(pid: u32, name: &'static str, most: u64) -> nix::Result<Vec<u8>> {
    let text = read_start(pid, name, most.saturating_add(1))?;
    match u64::try_from(text.len()) {
        Ok(length) if length <= most => Ok(text),
        _ => Err(Errno::EFBIG),
    }
}

/// Reads the first `most` bytes of `/proc/PID/NAME`.
///
/// # Errors
/// As for [`read`].
pub fn read_start(pid: u32, name: &'static str, most: u64) -> nix::Result<Vec<u8>> {
    bounded(pid, move || read_start_now(pid, name, most))
}

/// Reads the first `most` bytes of `/proc/PID/NAME` without a time limit.
fn read_start_now(pid: u32, name: &str, most: u64) -> std::io::Result<Vec<u8>> {
    // These files have no size: with less room they would be read in many small parts.
    let mut text = Vec::with_capacity(TYPICAL);
    let file = fs::File::open(format!("/proc/{pid}/{name}"))?;
    file.take(most).read_to_end(&mut text)?;
    Ok(text)
}

/// Returns the target of the link `/proc/PID/NAME`.
///
/// # Errors
/// As for [`read`].
pub fn read_link(pid: u32, name: &'static str) -> nix::Result<PathBuf> {
    bounded(pid, move || fs::read_link(format!("/proc/{pid}/{name}")))
}

/// Returns the values of a key of `/proc/PID/status`: the words after `KEY:`. Reads of this file cannot be
/// blocked.
pub fn status(pid: u32, key: &str) -> Option<Vec<u32>> {
    let text = read_start_now(pid, "status", u64::MAX).ok()?;
    status_values(&String::from_utf8_lossy(&text), key)
}

/// Returns the values of a key in the text of /proc/PID/status.
pub fn status_values(text: &str, key: &str) -> Option<Vec<u32>> {
    let is_key = |line: &&str| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':'));
    let line = text.lines().find(is_key)?;
    let values = line.get(key.len() + 1..)?.split_ascii_whitespace();
    values.map(|word| word.parse().ok()).collect()
}

/// Returns the effective uid of a process; 0 if there is no such process.
fn uid(pid: u32) -> u32 {
    let uids = status(pid, "Uid");
    uids.and_then(|uids| uids.get(1).copied()).unwrap_or(0)
}

fn bounded<T: Send + 'static>(
    pid: u32,
    look: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> nix::Result<T> {
    let patience = READERS.lock().patience(pid)?;
    let (answer, answered) = channel();
    let job: Job = Box::new(move || {
        let _ = answer.send(look());
    });
    run(job, pid)?;
    let Ok(answer) = answered.recv_timeout(patience) else {
        READERS.lock().is_held_up(pid);
        // The answer may have come meanwhile.
        return match answered.try_recv() {
            Ok(answer) => {
                READERS.lock().stuck.remove(&pid);
                answer.map_err(errno)
            }
            Err(_) => Err(Errno::ETIMEDOUT),
        };
    };
    answer.map_err(errno)
}

fn errno(error: std::io::Error) -> Errno {
    match error.raw_os_error() {
        // It never existed, or has ended meanwhile.
        Some(libc::ENOENT) => Errno::ESRCH,
        Some(errno) => Errno::from_raw(errno),
        None => Errno::EIO,
    }
}

/// Runs the job on an idle thread, or on a new one.
fn run(job: Job, pid: u32) -> nix::Result<()> {
    let job: Job = Box::new(move || {
        job();
        READERS.lock().stuck.remove(&pid);
    });
    let idle = READERS.lock().idle.pop();
    let job = match idle {
        Some(idle) => match idle.send(job) {
            Ok(()) => return Ok(()),
            Err(back) => back.0,
        },
        None => job,
    };
    let spawned = thread::Builder::new()
        .name("procfs".to_owned())
        .stack_size(STACK)
        .spawn(move || {
            job();
            loop {
                let (sender, jobs) = channel::<Job>();
                READERS.lock().idle.push(sender);
                let Ok(job) = jobs.recv() else { return };
                job();
            }
        });
    spawned.map(drop).map_err(|_| Errno::EAGAIN)
}

impl Readers {
    /// Returns the time limit of a read of the process's files.
    ///
    /// # Errors
    /// `ETIMEDOUT` if the process, or 16 processes of its user, block reads now.
    fn patience(&mut self, pid: u32) -> nix::Result<Duration> {
        let now = Instant::now();
        self.offenders
            .retain(|_, last| now.duration_since(*last) < MEMORY);
        if self.stuck.is_empty() && self.offenders.is_empty() {
            return Ok(PATIENCE);
        }
        if self.stuck.contains_key(&pid) {
            return Err(Errno::ETIMEDOUT);
        }
        let uid = uid(pid);
        let nr_stuck = self.stuck.values().filter(|of| **of == uid).count();
        if nr_stuck >= MAX_STUCK_PER_UID || self.stuck.len() >= MAX_STUCK {
            return Err(Errno::ETIMEDOUT);
        }
        let is_offender = self.offenders.contains_key(&uid);
        Ok(if is_offender { SHORT_PATIENCE } else { PATIENCE })
    }

    fn is_held_up(&mut self, pid: u32) {
        let uid = uid(pid);
        self.stuck.insert(pid, uid);
        if self.offenders.insert(uid, Instant::now()).is_none() {
            tracing::warn!("{pid} of user {uid} blocks reads of its files in /proc");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::{Arc, Condvar};

    use super::*;

    #[test]
    fn read_returns_contents_or_errno() {
        let me = std::process::id();
        assert!(read(me, "stat").unwrap().starts_with(me.to_string().as_bytes()));
        assert_eq!(read_link(me, "exe").unwrap(), std::env::current_exe().unwrap());
        // kernel.pid_max is 2^22 at most.
        assert_eq!(read(1 << 23, "stat"), Err(Errno::ESRCH));
        let comm = read(me, "comm").unwrap();
        let length = u64::try_from(comm.len()).unwrap();
        assert_eq!(read_at_most(me, "comm", length), Ok(comm));
        assert_eq!(read_at_most(me, "comm", length - 1), Err(Errno::EFBIG));
    }

    #[test]
    fn status_values_match_the_whole_key() {
        let text = "Uid:\t1\t2\t3\t4\nNSpid:\t7 8\nUidX:\t9\nName:\tx\n";
        assert_eq!(status_values(text, "Uid"), Some(vec![1, 2, 3, 4]));
        assert_eq!(status_values(text, "NSpid"), Some(vec![7, 8]));
        assert_eq!(status_values(text, "Name"), None);
        assert_eq!(status_values(text, "NS"), None);
        assert_eq!(
            status(std::process::id(), "NSpid").unwrap().last(),
            Some(&std::process::id())
        );
    }

    /// Pids that no process has, so that other tests do not share their user's (root's) state.
    #[test]
    fn blocked_read_times_out_and_the_next_at_once() {
        let gate = Arc::new((std::sync::Mutex::new(false), Condvar::new()));
        let of_reader = gate.clone();
        let pid = (1 << 23) + 1;
        let held = bounded(pid, move || {
            let (open, changed) = &*of_reader;
            drop(changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
            Ok(())
        });
        assert_eq!(held, Err(Errno::ETIMEDOUT));
        let asked = Arc::new(AtomicBool::new(false));
        let ask = || {
            let asked = asked.clone();
            bounded(pid, move || {
                asked.store(true, SeqCst);
                Ok(())
            })
        };
        assert_eq!(ask(), Err(Errno::ETIMEDOUT));
        assert!(!asked.load(SeqCst), "no second thread is used for it");
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        let deadline = Instant::now() + Duration::from_secs(60);
        while ask() != Ok(()) {
            assert!(Instant::now() < deadline);
        }
        READERS.lock().offenders.clear();
    }
    #[test]
    fn threads_blocked_by_all_users_are_bounded() {
        let mut readers = Readers::default();
        for pid in 0..u32::try_from(MAX_STUCK).unwrap() {
            assert!(readers.patience(1 << 23).is_ok());
            readers.stuck.insert((1 << 24) + pid, 1000 + pid);
        }
        assert_eq!(readers.patience(1 << 23), Err(Errno::ETIMEDOUT));
    }
}
