//! Detection of device use that hooks do not account for: by processes without a hook, and by processes that
//! hold more than their ledger.
//!
//! The daemon cannot prevent such use; it is made visible in `unmanaged` and the log, and the process may be
//! sent a signal.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use tracing::warn;

use crate::log_limit::LogLimit;
use gcgroupfs_model::diagnosis::HOOK;
use gcgroupfs_model::tree::{OnUnmanaged, Reason, Unmanaged};
use gcgroupfs_sys::{process, procfs};

/// Time after the daemon's start in which a process without a hook may be a governed one that has not
/// registered again.
const COMING_BACK: Duration = Duration::from_secs(2);

/// Time for which a process without a hook must be listed before it is sent a signal.
const BEFORE_SIGNAL: Duration = Duration::from_secs(5);

/// Most bytes that are read of a process's maps: those of about 150,000 mappings.
const MOST_MAPS: u64 = 16 << 20;

/// Name of `nvidia-cuda-mps-server` in the kernel, which holds the memory of all clients of MPS.
const MPS_SERVER: &str = "nvidia-cuda-mps";

/// Bytes that each context of a process explains: the context itself, and what the driver reserves in it for
/// stacks, heaps and queues.
const PER_CONTEXT: u64 = 2 << 30;

/// Pid, start time, device and reason.
type Seen = (u32, u64, usize, Reason);

/// When a process was first found.
#[derive(Debug, Clone, Copy)]
struct First {
    /// Seconds since 1970.
    since: u64,
    at: Instant,
    nr_found: u32,
    /// Whether the process has been examined for a signal.
    is_done: bool,
}

#[derive(Debug)]
pub(crate) struct Audit {
    began: Instant,
    first: HashMap<Seen, First>,
    found: Vec<Unmanaged>,
    log_limit: LogLimit,
}

impl Default for Audit {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            first: HashMap::new(),
            found: Vec::new(),
            log_limit: LogLimit::default(),
        }
    }
}

impl Audit {
    /// Returns whether unmanaged processes can be told from governed ones that have not registered again.
    pub(crate) fn can_tell(&self) -> bool {
        self.began.elapsed() >= COMING_BACK
    }

    /// Notes a process without a hook that is on a device and holds `bytes` there, and takes the action.
    pub(crate) fn no_hook(&mut self, pid: u32, device: usize, bytes: Option<u64>, action: OnUnmanaged) {
        let noted = self.note(pid, device, bytes, Reason::NoHook);
        if let Some(seen) = noted.filter(|_| action == OnUnmanaged::Signal) {
            self.signal(seen);
        }
    }

    /// Sends SIGTERM to a process that has been found for [`BEFORE_SIGNAL`], once. The server of MPS is
    /// spared, and a process that has loaded the hook: it may be a governed one that is stopped, and so has
    /// not registered with this daemon.
    fn signal(&mut self, seen: Seen) {
        let Some(first) = self.first.get_mut(&seen) else {
            return;
        };
        if first.is_done || first.at.elapsed() < BEFORE_SIGNAL {
            return;
        }
        first.is_done = true;
        let (pid, start_time, device, _) = seen;
        // Opened before the checks, so that they are about the process that gets the signal.
        let number = i32::try_from(pid).unwrap_or(0);
        let Ok(pidfd) = gcgroupfs_sys::pidfd_open(number) else {
            return;
        };
        let exemption = match process::stat(pid) {
            Err(Errno::ESRCH) => return,
            Ok(stat) if stat.start_time != start_time => return,
            Ok(stat) if *stat.comm == *MPS_SERVER => Some("it is the server of MPS".to_owned()),
            Ok(_) => match procfs::read_at_most(pid, "maps", MOST_MAPS) {
                Ok(maps) => {
                    let has_hook = maps.windows(HOOK.len()).any(|part| part == HOOK.as_bytes());
                    has_hook.then(|| format!("it has loaded {HOOK}"))
                }
                Err(error) => Some(format!("its maps cannot be read: {error}")),
            },
            Err(error) => Some(format!("its stat cannot be read: {error}")),
        };
        if let Some(why) = exemption {
            warn!(PID = pid, GPU = device, "{pid} is sent no signal: {why}");
            return;
        }
        match gcgroupfs_sys::send_signal(&pidfd, Signal::SIGTERM) {
            Ok(()) => warn!(
                PID = pid,
                GPU = device,
                "SIGTERM sent to {pid}: it uses device {device} without a hook"
            ),
            Err(error) => warn!(
                PID = pid,
                GPU = device,
                "SIGTERM cannot be sent to {pid}: {error}"
            ),
        }
    }

    /// Notes a governed process that holds `bytes` on a device beyond its ledger, unless its contexts explain
    /// them.
    pub(crate) fn beyond_ledger(&mut self, pid: u32, device: usize, bytes: u64, contexts: u64) {
        if bytes > contexts.saturating_mul(PER_CONTEXT) {
            self.note(pid, device, Some(bytes), Reason::BeyondLedger);
        }
    }

    /// Notes a process whose claim to use a device is refuted.
    pub(crate) fn claims_use(&mut self, pid: u32, device: usize, bytes: Option<u64>) {
        let _ = self.note(pid, device, bytes, Reason::ClaimsUse);
    }

    /// Notes a process that claims `bytes` on a device beyond what it holds there.
    pub(crate) fn claims_more(&mut self, pid: u32, device: usize, bytes: u64) {
        self.note(pid, device, Some(bytes), Reason::ClaimsMore);
    }

    /// Lists a process; `None` if it has ended.
    fn note(&mut self, pid: u32, device: usize, bytes: Option<u64>, reason: Reason) -> Option<Seen> {
        let stat = process::stat(pid).ok()?;
        let file = fs::metadata(format!("/proc/{pid}")).ok()?;
        let (comm, uid) = (stat.comm, file.uid());
        let seen = (pid, stat.start_time, device, reason);
        let first = self.first.entry(seen).or_insert_with(|| First {
            since: UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
            at: Instant::now(),
            nr_found: 0,
            is_done: false,
        });
        first.nr_found = first.nr_found.saturating_add(1);
        let since = first.since;
        if first.nr_found == logged_at(reason) && self.log_limit.allows(uid, Instant::now()) {
            let does = in_words(reason, device);
            warn!(
                PID = pid,
                UID = uid,
                GPU = device,
                "{pid} ({comm}) of user {uid} {does}"
            );
        }
        self.found.push(Unmanaged {
            pid,
            device,
            uid,
            comm,
            bytes,
            since,
            reason,
        });
        Some(seen)
    }

    /// Returns what was noted since the last call, by pid and device.
    pub(crate) fn take(&mut self) -> Vec<Unmanaged> {
        self.log_limit.sum_up(Instant::now());
        let mut found = std::mem::take(&mut self.found);
        found.sort_unstable_by_key(|one| (one.pid, one.device));
        self.first.retain(|(pid, _, device, reason), _| {
            found
                .iter()
                .any(|one| (one.pid, one.device, one.reason) == (*pid, *device, *reason))
        });
        found
    }
}

/// Returns how many times in a row a process is found until that is logged. A process that ends its last
/// context, or executes another program, claims to use the device for a moment longer than the driver lists
/// it.
fn logged_at(reason: Reason) -> u32 {
    match reason {
        Reason::ClaimsUse => 2,
        Reason::NoHook | Reason::BeyondLedger | Reason::ClaimsMore => 1,
    }
}

fn in_words(reason: Reason, device: usize) -> String {
    match reason {
        Reason::NoHook => format!("uses device {device} without a hook"),
        Reason::BeyondLedger => format!("holds more on device {device} than it accounts for"),
        Reason::ClaimsMore => format!("claims more on device {device} than NVML shows"),
        Reason::ClaimsUse => {
            format!("claims to use device {device} without evidence; the claim is ignored")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_again_keeps_its_first_time() {
        let mut audit = Audit::default();
        let me = std::process::id();
        audit.no_hook(me, 1, Some(7), OnUnmanaged::Log);
        audit.no_hook(me, 0, None, OnUnmanaged::Log);
        // No process has this pid: kernel.pid_max is 2^22 at most.
        audit.no_hook(u32::MAX, 0, Some(1), OnUnmanaged::Log);
        let first = audit.take();
        let devices: Vec<_> = first.iter().map(|one| (one.pid, one.device, one.bytes)).collect();
        assert_eq!(devices, [(me, 0, None), (me, 1, Some(7))]);
        audit.first.values_mut().for_each(|first| first.since = 3);
        audit.no_hook(me, 1, Some(8), OnUnmanaged::Log);
        assert_eq!(audit.take()[0].since, 3);
        audit.no_hook(me, 0, Some(8), OnUnmanaged::Log);
        assert_ne!(audit.take()[0].since, 3, "it was absent in between");
        assert!(audit.take().is_empty() && audit.first.is_empty());
    }

    #[test]
    fn contexts_explain_a_fixed_number_of_bytes() {
        let mut audit = Audit::default();
        let me = std::process::id();
        let mut is_noted = |bytes, contexts| {
            audit.beyond_ledger(me, 0, bytes, contexts);
            !audit.take().is_empty()
        };
        assert!(is_noted(1, 0) && !is_noted(0, 0));
        assert!(!is_noted(PER_CONTEXT, 1) && is_noted(PER_CONTEXT + 1, 1));
        assert!(!is_noted(u64::MAX, u64::MAX));
    }
}
