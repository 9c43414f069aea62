//! Registration: the first packet of a hook and its answer.

use super::{GroupName, Malformed, Reader, Tag, Writer, tag};
use crate::NO_LIMIT;

/// First packet of a hook, with the settings that the process was started with (`GCGROUP_MEMORY_LIMIT`, …).
/// They apply only until the control file is written, and cannot loosen what was set for the process before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// [`crate::VERSION`] of the hook's blocks.
    pub abi: u32,
    /// Bytes; [`NO_LIMIT`] if not set.
    pub memory_limit: u64,
    /// 0 to 15; all ones if not set.
    pub priority: u32,
    /// 1 to start frozen.
    pub freeze: u32,
    /// 1 if large allocations can be swapped out.
    pub can_swap: u32,
    /// Bytes that may be swapped out; 0 if not set.
    pub memory_swap_max: u64,
    /// Group in which the process starts.
    pub group: GroupName,
    /// 1 if the daemon must refuse the process (`EACCES`) instead of starting it outside `group`. Sent as bit
    /// 1 of the word whose bit 0 is `can_swap`.
    pub insists: u32,
    /// 1 if the process could start no helper thread, so that freezes are not confirmed. Bit 2 of that word.
    pub lacks_helper: u32,
    /// 1 if `memory_limit` and `memory_swap_max` are those of the process's job: they apply only where no
    /// group of a job above the process has its own. Bit 3 of that word.
    pub has_jobs_limits: u32,
    /// 1 if `group` is that of a job, which is not made for the process if it is not known. Bit 4 of that
    /// word.
    pub names_job: u32,
}

impl Hello {
    /// A registration without settings.
    pub const PLAIN: Hello = Hello {
        abi: crate::VERSION,
        memory_limit: NO_LIMIT,
        priority: u32::MAX,
        freeze: 0,
        can_swap: 0,
        memory_swap_max: 0,
        group: GroupName::NONE,
        insists: 0,
        lacks_helper: 0,
        has_jobs_limits: 0,
        names_job: 0,
    };
    pub const LENGTH: usize = 8 + 32 + GroupName::LONGEST;

    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        let mut at = Writer { out: &mut out, at: 0 };
        at.header(Tag::Hello);
        at.u32(self.abi);
        at.u32(self.priority);
        at.u64(self.memory_limit);
        at.u32(self.freeze);
        let bits = [
            self.can_swap,
            self.insists,
            self.lacks_helper,
            self.has_jobs_limits,
            self.names_job,
        ];
        at.u32(
            (0..)
                .zip(bits)
                .fold(0, |word, (at, bit)| word | ((bit & 1) << at)),
        );
        at.u64(self.memory_swap_max);
        at.put(&self.group.0);
        out
    }

    /// # Errors
    /// [`Malformed`].
    pub fn from_bytes(packet: &[u8]) -> Result<Self, Malformed> {
        let mut at = Reader::of(packet, Tag::Hello, Self::LENGTH)?;
        let (abi, priority, memory_limit, freeze) = (at.u32()?, at.u32()?, at.u64()?, at.u32()?);
        let (bits, memory_swap_max) = (at.u32()?, at.u64()?);
        let group = GroupName(at.take()?);
        Ok(Self {
            abi,
            memory_limit,
            priority,
            freeze,
            can_swap: bits & 1,
            memory_swap_max,
            group,
            insists: (bits >> 1) & 1,
            lacks_helper: (bits >> 2) & 1,
            has_jobs_limits: (bits >> 3) & 1,
            names_job: (bits >> 4) & 1,
        })
    }
}

/// Returns [`Hello::abi`] of a `Hello` of any version: of everything that follows the header, only its
/// position is fixed.
///
/// # Errors
/// [`Malformed`].
pub fn version(hello: &[u8]) -> Result<u32, Malformed> {
    match tag(hello)? {
        Tag::Hello => Reader {
            rest: hello.get(8..).unwrap_or(&[]),
        }
        .u32(),
        _ => Err(Malformed::Tag),
    }
}

/// The daemon's answer to [`Hello`]. Its layout is the same in all versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegistrationReply {
    /// [`crate::VERSION`] of the daemon's blocks.
    pub abi: u32,
    /// 0 if accepted, with a descriptor; otherwise an errno, and the process is not governed.
    pub status: u32,
    /// Whether a rule forbids CUDA to the process while it is not governed. Sent as the highest bit of the
    /// word of `status`.
    pub bars_cuda: bool,
}

impl RegistrationReply {
    pub const LENGTH: usize = 8 + 8;
    const BARS_CUDA: u32 = 1 << 31;

    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        let mut at = Writer { out: &mut out, at: 0 };
        at.header(Tag::RegistrationReply);
        at.u32(self.abi);
        at.u32(self.status | if self.bars_cuda { Self::BARS_CUDA } else { 0 });
        out
    }

    /// # Errors
    /// [`Malformed`].
    pub fn from_bytes(packet: &[u8]) -> Result<Self, Malformed> {
        let mut at = Reader::of(packet, Tag::RegistrationReply, Self::LENGTH)?;
        let (abi, word) = (at.u32()?, at.u32()?);
        Ok(Self {
            abi,
            status: word & !Self::BARS_CUDA,
            bars_cuda: word & Self::BARS_CUDA != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::bare;

    #[test]
    fn version_is_read_from_any_hello() {
        let hello = Hello {
            abi: 9,
            ..Hello::PLAIN
        }
        .to_bytes();
        let mut longer = [0; Hello::LENGTH + 24];
        longer[..Hello::LENGTH].copy_from_slice(&hello);
        for packet in [&hello[..12], &hello, &longer] {
            assert_eq!(version(packet), Ok(9));
        }
        assert_eq!(version(&hello[..11]), Err(Malformed::Length));
        assert_eq!(version(&bare(Tag::Doorbell)), Err(Malformed::Tag));
    }
}
