//! Limit on host memory for swap, so that the host never has to kill a process for lack of memory.
//!
//! Two processes that read `MemAvailable` at once would count the same bytes. So a process publishes the
//! bytes it is about to take (its claim) in its usage block, and the daemon answers with the sum of the other
//! processes' claims. There is no lock, because a process could keep it.

use std::path::PathBuf;
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use gcgroup_abi::environment::GCGROUP_MEMINFO;
use parking_lot::Mutex;

use super::Swap;
use crate::sys;

/// Reserve that is always left: the larger of these bytes and this fraction (1/16) of all memory.
const RESERVE: u64 = 512 << 20;
const RESERVE_SHARE: u64 = 16;

/// A block of up to this fraction (1/16) of the room is taken without a claim. It is at most the reserve, so
/// a process that takes it while others take all they have claimed leaves memory to the host; and sixteen
/// processes at once take no more than there is.
const SMALL_SHARE: u64 = 16;

/// How long an answer is valid. The daemon counts a claim for twice as long.
const FRESH: Duration = Duration::from_secs(1);

/// The source of the host's memory figures: proc_meminfo(5), or a file of that format that `GCGROUP_MEMINFO`
/// names.
#[derive(Debug)]
pub(crate) struct Host {
    meminfo: PathBuf,
    claimed: Mutex<Claimed>,
}

/// State of the process's claim, of which there is one at a time.
#[derive(Debug, Default, Clone, Copy)]
enum Claimed {
    #[default]
    No,
    /// Published; the daemon has been asked.
    Asked { number: u32, size: u64, since: Instant },
    /// A thread is taking the memory.
    Held,
}

impl Host {
    pub(super) fn new() -> Self {
        let named = sys::path(&GCGROUP_MEMINFO);
        Self {
            meminfo: named.map_or_else(|| "/proc/meminfo".into(), PathBuf::from),
            claimed: Mutex::default(),
        }
    }

    /// Returns how many bytes may be taken, by `MemAvailable`; `u64::MAX` if that cannot be read, since the
    /// driver will refuse by itself.
    pub(super) fn room(&self) -> u64 {
        let text = std::fs::read_to_string(&self.meminfo).unwrap_or_default();
        let total = bytes_of(&text, "MemTotal:").unwrap_or(0);
        let reserve = RESERVE.max(total / RESERVE_SHARE);
        bytes_of(&text, "MemAvailable:").map_or(u64::MAX, |available| available.saturating_sub(reserve))
    }
}

/// A claim on host memory, withdrawn on drop. Until then other processes do not count on that memory.
#[derive(Debug)]
pub(super) struct Claim<'a>(Option<&'a Swap>);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Self(Some(swap)) = self {
            swap.withdraw(&mut swap.host.claimed.lock());
        }
    }
}

/// Why host memory cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unclaimed {
    /// The daemon has not answered, or other processes are about to take what is available.
    NotYet,
    NoRoom,
}

impl Swap {
    /// Claims `size` bytes of host memory, to be taken before the result is dropped. Small sizes need no
    /// claim and no answer of the daemon. With `is_late` other processes' claims are ignored.
    ///
    /// # Errors
    /// * [`Unclaimed::NotYet`]: call again.
    /// * [`Unclaimed::NoRoom`]: the host has too little memory.
    pub(super) fn claim_host(&self, size: u64, is_late: bool) -> Result<Claim<'_>, Unclaimed> {
        let (host, control) = (&self.host, self.control());
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
        // `MemAvailable` is read after the other claims: memory made in between counts twice rather than
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

    /// Publishes a claim in place of the last one and rings the daemon.
    fn ask_claims(&self, claimed: &mut Claimed, size: u64) {
        let usage = self.usage();
        usage.host_claim.store(size, Relaxed);
        let number = usage.host_request.fetch_add(1, Release).wrapping_add(1);
        *claimed = Claimed::Asked {
            number,
            size,
            since: Instant::now(),
        };
        self.session.ring();
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
    use crate::shared::block;
    use gcgroup_abi::{Control, NO_LIMIT};

    const GIB: u64 = 1 << 30;

    /// Writes the file that describes the host's memory, bytes.
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
    fn meminfo_fields_are_parsed() {
        let text = "MemTotal:       24625132 kB\nMemFree: 1 kB\nMemAvailable:   23992196 kB\n";
        assert_eq!(bytes_of(text, "MemAvailable:"), Some(23_992_196 << 10));
        assert_eq!(bytes_of(text, "MemTotal:"), Some(24_625_132 << 10));
        assert_eq!(bytes_of("MemTotal: 1 kB\n", "MemAvailable:"), None);
        let room = Host::new().room();
        assert!(room < u64::MAX / 2, "{room}");
    }

    #[test]
    fn room_excludes_reserve_and_is_unbounded_if_unknown() {
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

    /// Returns a process and the daemon's view of its control block. It reads the memory of the real host.
    fn claimant() -> (&'static Swap, &'static Control) {
        let swap = Swap::of_test(NO_LIMIT);
        (swap, adopt(swap))
    }

    /// Returns a size that needs a claim. Other processes of the host may take memory meanwhile.
    fn large(swap: &Swap) -> u64 {
        swap.host.room() / 2
    }

    /// Registers the process with a new daemon.
    fn adopt(swap: &Swap) -> &'static Control {
        let (control, file) = block::of_daemon();
        control.answers_claims.store(1, Relaxed);
        answer(swap, control, NO_LIMIT);
        control.publish();
        swap.adopt(&file);
        control
    }

    fn answer(swap: &Swap, control: &Control, others: u64) {
        control.host_claimed.store(others, Relaxed);
        let number = swap.usage().host_request.load(Relaxed);
        control.host_answer.store(number, Release);
    }

    #[track_caller]
    fn refusal(swap: &Swap, size: u64, is_late: bool) -> Unclaimed {
        swap.claim_host(size, is_late).unwrap_err()
    }

    fn published(swap: &Swap) -> (u64, u32) {
        let usage = swap.usage();
        (usage.host_claim.load(Relaxed), usage.host_request.load(Relaxed))
    }

    #[test]
    fn claim_is_published_until_dropped() {
        let (swap, control) = claimant();
        let size = large(swap);
        for _ in 0..3 {
            assert_eq!(refusal(swap, size, false), Unclaimed::NotYet);
            assert_eq!(published(swap), (size, 1));
        }
        answer(swap, control, 0);
        let claim = swap.claim_host(size, false).unwrap();
        assert_eq!(published(swap), (size, 1));
        assert_eq!(refusal(swap, size, false), Unclaimed::NotYet, "one at a time");
        drop(swap.claim_host(size, true).unwrap());
        assert_eq!(published(swap), (size, 1), "the claim of the first call");
        drop(claim);
        assert_eq!(published(swap), (0, 1));
    }

    #[test]
    fn claim_waits_for_others_unless_late() {
        let (swap, control) = claimant();
        let size = large(swap);
        for number in 1..4 {
            assert_eq!(refusal(swap, size, false), Unclaimed::NotYet);
            assert_eq!(published(swap), (size, number));
            answer(swap, control, NO_LIMIT);
            assert_eq!(refusal(swap, size, false), Unclaimed::NotYet);
            assert_eq!(published(swap), (0, number), "withdrawn");
        }
        assert_eq!(refusal(swap, size, false), Unclaimed::NotYet);
        drop(swap.claim_host(size, true).unwrap());
        assert_eq!(published(swap), (0, 4));
    }

    #[test]
    fn claim_beyond_room_fails() {
        let (swap, control) = claimant();
        assert_eq!(refusal(swap, NO_LIMIT, true), Unclaimed::NoRoom);
        assert_eq!(refusal(swap, NO_LIMIT, false), Unclaimed::NotYet);
        answer(swap, control, 0);
        assert_eq!(refusal(swap, NO_LIMIT, false), Unclaimed::NoRoom);
        assert_eq!(published(swap), (0, 1));
    }

    #[test]
    fn stale_or_foreign_answer_is_ignored() {
        let (swap, control) = claimant();
        let (size, other) = (large(swap), large(swap) / 2);
        assert_eq!(refusal(swap, size, false), Unclaimed::NotYet);
        answer(swap, control, 0);
        assert_eq!(refusal(swap, other, false), Unclaimed::NotYet, "another size");
        answer(swap, control, 0);
        if let Claimed::Asked { since, .. } = &mut *swap.host.claimed.lock() {
            *since -= FRESH;
        }
        assert_eq!(refusal(swap, other, false), Unclaimed::NotYet);
        assert_eq!(published(swap), (other, 3), "asked again");
        let next = adopt(swap);
        assert_eq!(refusal(swap, other, false), Unclaimed::NotYet);
        assert_eq!(refusal(swap, other, false), Unclaimed::NotYet);
        answer(swap, next, 0);
        drop(swap.claim_host(other, false).unwrap());
    }

    #[test]
    fn daemon_without_claims_is_not_asked() {
        let swap = Swap::of_test(NO_LIMIT);
        drop(swap.claim_host(large(swap), false).unwrap());
        assert_eq!(published(swap), (0, 0));
    }

    #[test]
    fn small_size_needs_no_claim() {
        let (swap, _) = claimant();
        drop(swap.claim_host(4096, false).unwrap());
        assert_eq!(published(swap), (0, 0));
    }
}
