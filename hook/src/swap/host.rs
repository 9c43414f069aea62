//! How much of the host's memory may be taken: never so much that the host has to kill somebody for it.
//!
//! Two processes that look at `MemAvailable` at once would count the same bytes twice. So a process publishes
//! what it is about to take in its usage block, and the daemon tells it what others are about to take. No
//! lock is taken: a process could keep it.

use std::path::PathBuf;
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::process::Process;
use crate::sys;

/// What is always left, bytes, and as a share of all that the host has: the larger.
const RESERVE: u64 = 512 << 20;
const RESERVE_SHARE: u64 = 16;

/// The share of the room that is taken without a claim. It is no more than the reserve, so one process that
/// takes it while others take all they have claimed leaves the host something; and sixteen at once take no
/// more than there is.
const SMALL_SHARE: u64 = 16;

/// How long an answer is of use. The daemon counts a claim for twice as long.
const FRESH: Duration = Duration::from_secs(1);

/// Where the host says what it has: proc_meminfo(5), or another file of that form that `GCGROUP_MEMINFO`
/// names.
#[derive(Debug)]
pub(crate) struct Host {
    meminfo: PathBuf,
    claimed: Mutex<Claimed>,
}

/// The process's claim, of which there is one at a time.
#[derive(Debug, Default, Clone, Copy)]
enum Claimed {
    #[default]
    No,
    /// Published, and the daemon is asked.
    Asked { number: u32, size: u64, since: Instant },
    /// A thread takes the memory.
    Held,
}

impl Host {
    pub(super) fn new() -> Self {
        let named = sys::variable("GCGROUP_MEMINFO").filter(|name| !name.is_empty());
        Self {
            meminfo: named.map_or_else(|| "/proc/meminfo".into(), PathBuf::from),
            claimed: Mutex::default(),
        }
    }

    /// Bytes that may be taken, by `MemAvailable`. Where that cannot be read, the driver will say when it is
    /// asked.
    pub(super) fn room(&self) -> u64 {
        self.look().room
    }

    /// Whether so little may be taken that nothing is kept for later.
    pub(super) fn is_short(&self) -> bool {
        let Looked { room, reserve } = self.look();
        room < reserve
    }

    fn look(&self) -> Looked {
        let text = std::fs::read_to_string(&self.meminfo).unwrap_or_default();
        let total = bytes_of(&text, "MemTotal:").unwrap_or(0);
        let reserve = RESERVE.max(total / RESERVE_SHARE);
        let room =
            bytes_of(&text, "MemAvailable:").map_or(u64::MAX, |available| available.saturating_sub(reserve));
        Looked { room, reserve }
    }
}

/// What the host has, bytes.
struct Looked {
    /// What may be taken.
    room: u64,
    /// What is always left.
    reserve: u64,
}

/// Memory of the host that is being taken: until this is dropped, others do not count on it.
#[derive(Debug)]
pub(super) struct Claim<'a>(Option<&'a Process>);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Self(Some(process)) = self {
            process.withdraw(&mut process.swap.host.claimed.lock());
        }
    }
}

/// Why memory of the host cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unclaimed {
    /// The daemon has not answered, or others are about to take what is there.
    NotYet,
    NoRoom,
}

impl Process {
    /// Claims that many bytes of the host's memory, to be taken before the result is dropped. A caller that
    /// is told [`Unclaimed::NotYet`] calls again; one that `is_late` has waited long enough, and is not held
    /// up by other processes. Little beside what the host has is not claimed: that takes no daemon's answer.
    pub(super) fn claim_host(&self, size: u64, is_late: bool) -> Result<Claim<'_>, Unclaimed> {
        let (host, control) = (&self.swap.host, self.control());
        if size <= host.room() / SMALL_SHARE {
            return Ok(Claim(None));
        }
        let mut claimed = host.claimed.lock();
        if is_late || control.answers_claims.load(Relaxed) == 0 {
            if matches!(*claimed, Claimed::Asked { .. }) {
                self.withdraw(&mut claimed);
            }
            return match host.room() < size {
                true => Err(Unclaimed::NoRoom),
                false => Ok(Claim(None)),
            };
        }
        let number = match *claimed {
            Claimed::Held => return Err(Unclaimed::NotYet),
            Claimed::Asked {
                number,
                size: asked,
                since,
            } if asked == size && since.elapsed() < FRESH => number,
            Claimed::Asked { .. } | Claimed::No => {
                self.ask_claims(&mut claimed, size);
                return Err(Unclaimed::NotYet);
            }
        };
        if control.host_answer.load(Acquire) != number {
            return Err(Unclaimed::NotYet);
        }
        // The host is looked at after the others' claims: what was made meanwhile counts twice, and not
        // never.
        let others = control.host_claimed.load(Relaxed);
        let room = host.room();
        if room.saturating_sub(others) >= size {
            *claimed = Claimed::Held;
            return Ok(Claim(Some(self)));
        }
        self.withdraw(&mut claimed);
        match room < size {
            true => Err(Unclaimed::NoRoom),
            false => Err(Unclaimed::NotYet),
        }
    }

    /// Claims memory that is not needed yet, if the reserve is left a second time.
    pub(super) fn claim_spare(&self, size: u64) -> Result<Claim<'_>, Unclaimed> {
        self.claim_host(size.saturating_add(self.swap.host.look().reserve), false)
    }

    /// Publishes a claim in the place of the last one.
    fn ask_claims(&self, claimed: &mut Claimed, size: u64) {
        let usage = self.usage();
        usage.host_claim.store(size, Relaxed);
        let number = usage.host_request.fetch_add(1, Release).wrapping_add(1);
        *claimed = Claimed::Asked {
            number,
            size,
            since: Instant::now(),
        };
        self.ring();
    }

    fn withdraw(&self, claimed: &mut Claimed) {
        *claimed = Claimed::No;
        self.usage().host_claim.store(0, Relaxed);
    }
}

fn bytes_of(meminfo: &str, key: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
    let kilobytes: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block;
    use gcgroup_abi::{Control, NO_LIMIT};

    const GIB: u64 = 1 << 30;

    /// A host of that size, with so much available.
    fn tell(host: &Host, total: u64, available: u64) {
        let text = format!(
            "MemTotal: {} kB\nMemAvailable: {} kB\n",
            total >> 10,
            available >> 10
        );
        std::fs::write(&host.meminfo, text).unwrap();
    }

    fn pretended(name: &str) -> Host {
        let file = format!("gcgroup-meminfo-{name}-{}", std::process::id());
        Host {
            meminfo: std::env::temp_dir().join(file),
            claimed: Mutex::default(),
        }
    }

    #[test]
    fn what_is_available_is_read() {
        let text = "MemTotal:       24625132 kB\nMemFree: 1 kB\nMemAvailable:   23992196 kB\n";
        assert_eq!(bytes_of(text, "MemAvailable:"), Some(23_992_196 << 10));
        assert_eq!(bytes_of(text, "MemTotal:"), Some(24_625_132 << 10));
        assert_eq!(bytes_of("MemTotal: 1 kB\n", "MemAvailable:"), None);
        let room = Host::new().room();
        assert!(room < u64::MAX / 2, "{room}");
    }

    #[test]
    fn what_must_be_left_cannot_be_had_and_what_nobody_tells_is_no_bound() {
        let host = pretended("left");
        assert_eq!(host.room(), u64::MAX);
        for (total, reserve) in [(GIB, RESERVE), (8 * GIB, RESERVE), (256 * GIB, 16 * GIB)] {
            for (available, room) in [(0, 0), (reserve, 0), (reserve + 4096, 4096)] {
                tell(&host, total, available);
                assert_eq!(host.room(), room, "{available} of {total}");
            }
        }
        std::fs::remove_file(&host.meminfo).unwrap();
    }

    /// A process and the daemon's view of its control block. It looks at the host of the test.
    fn claimant() -> (&'static Process, &'static Control) {
        let process = Process::of_test(NO_LIMIT);
        (process, adopt(process))
    }

    /// As much as has to be claimed. Other processes of the host may take some meanwhile.
    fn large(process: &Process) -> u64 {
        process.swap.host.room() / 2
    }

    /// A daemon as it is when the process has registered with it.
    fn adopt(process: &Process) -> &'static Control {
        let (control, file) = block::of_daemon();
        control.answers_claims.store(1, Relaxed);
        answer(process, control, NO_LIMIT);
        control.publish();
        process.adopt(&file);
        control
    }

    fn answer(process: &Process, control: &Control, others: u64) {
        control.host_claimed.store(others, Relaxed);
        let number = process.usage().host_request.load(Relaxed);
        control.host_answer.store(number, Release);
    }

    #[track_caller]
    fn refusal(process: &Process, size: u64, is_late: bool) -> Unclaimed {
        process.claim_host(size, is_late).unwrap_err()
    }

    fn published(process: &Process) -> (u64, u32) {
        let usage = process.usage();
        (usage.host_claim.load(Relaxed), usage.host_request.load(Relaxed))
    }

    #[test]
    fn a_claim_is_published_until_the_memory_is_taken() {
        let (process, control) = claimant();
        let size = large(process);
        for _ in 0..3 {
            assert_eq!(refusal(process, size, false), Unclaimed::NotYet);
            assert_eq!(published(process), (size, 1));
        }
        answer(process, control, 0);
        let claim = process.claim_host(size, false).unwrap();
        assert_eq!(published(process), (size, 1));
        assert_eq!(refusal(process, size, false), Unclaimed::NotYet, "one at a time");
        drop(process.claim_host(size, true).unwrap());
        assert_eq!(published(process), (size, 1), "that of the first");
        drop(claim);
        assert_eq!(published(process), (0, 1));
    }

    #[test]
    fn bytes_that_others_claim_are_waited_for_and_a_late_claim_is_not_held_up() {
        let (process, control) = claimant();
        let size = large(process);
        for number in 1..4 {
            assert_eq!(refusal(process, size, false), Unclaimed::NotYet);
            assert_eq!(published(process), (size, number));
            answer(process, control, NO_LIMIT);
            assert_eq!(refusal(process, size, false), Unclaimed::NotYet);
            assert_eq!(published(process), (0, number), "withdrawn");
        }
        assert_eq!(refusal(process, size, false), Unclaimed::NotYet);
        drop(process.claim_host(size, true).unwrap());
        assert_eq!(published(process), (0, 4));
    }

    #[test]
    fn a_claim_of_more_than_there_is_fails() {
        let (process, control) = claimant();
        assert_eq!(refusal(process, NO_LIMIT, true), Unclaimed::NoRoom);
        assert_eq!(refusal(process, NO_LIMIT, false), Unclaimed::NotYet);
        answer(process, control, 0);
        assert_eq!(refusal(process, NO_LIMIT, false), Unclaimed::NoRoom);
        assert_eq!(published(process), (0, 1));
    }

    #[test]
    fn an_answer_that_is_old_or_of_another_daemon_is_not_used() {
        let (process, control) = claimant();
        let (size, other) = (large(process), large(process) / 2);
        assert_eq!(refusal(process, size, false), Unclaimed::NotYet);
        answer(process, control, 0);
        assert_eq!(refusal(process, other, false), Unclaimed::NotYet, "another size");
        answer(process, control, 0);
        if let Claimed::Asked { since, .. } = &mut *process.swap.host.claimed.lock() {
            *since -= FRESH;
        }
        assert_eq!(refusal(process, other, false), Unclaimed::NotYet);
        assert_eq!(published(process), (other, 3), "asked anew");
        let next = adopt(process);
        assert_eq!(refusal(process, other, false), Unclaimed::NotYet);
        assert_eq!(refusal(process, other, false), Unclaimed::NotYet);
        answer(process, next, 0);
        drop(process.claim_host(other, false).unwrap());
    }

    #[test]
    fn a_daemon_that_answers_no_claims_is_not_asked() {
        let process = Process::of_test(NO_LIMIT);
        drop(process.claim_host(large(process), false).unwrap());
        assert_eq!(published(process), (0, 0));
    }

    #[test]
    fn little_memory_is_taken_without_a_claim() {
        let (process, _) = claimant();
        drop(process.claim_host(4096, false).unwrap());
        assert_eq!(published(process), (0, 0));
    }
}
