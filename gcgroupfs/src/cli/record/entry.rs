//! Records of a recording, and their encoding in a slot of the file.

use std::fmt::{self, Display};

use gcgroupfs_model::text::word;

/// Length of an encoded record, bytes.
pub(super) const LENGTH: usize = 64;

const GPU: u8 = 1;
const PROCESS: u8 = 2;

/// Flags of a process.
const FROZEN: u8 = 1;
const LEFT: u8 = 2;

/// Length of a stored comm, bytes.
const COMM: usize = 16;

/// Numbers that are unknown are stored with all bits set.
const UNKNOWN: u8 = u8::MAX;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    Gpu(Gpu),
    Process(Process),
}

/// GPU in one second; `None`: unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gpu {
    /// Seconds since 1970.
    pub(super) time: u64,
    pub(super) index: u32,
    pub(super) used: Option<u64>,
    pub(super) charged: Option<u64>,
    /// Percent.
    pub(super) utilization: Option<u64>,
    /// Degrees Celsius.
    pub(super) temperature: Option<u64>,
    pub(super) power_mw: Option<u64>,
}

/// Process in one second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    /// Seconds since 1970.
    pub(super) time: u64,
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) comm: String,
    /// Bytes charged.
    pub(super) memory: u64,
    /// Bytes in host memory.
    pub(super) swapped: u64,
    pub(super) priority: Option<u8>,
    pub(super) is_frozen: bool,
    /// Whether it has left since the last record.
    pub(super) has_left: bool,
}

impl Gpu {
    /// Parses a line of `devices.stat`.
    pub(super) fn parse(time: u64, line: &str) -> Option<Self> {
        let (index, pairs) = line.split_once(' ')?;
        let value = |name: &str| {
            let mut pairs = pairs.split(' ').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name)?.1.parse().ok()
        };
        Some(Self {
            time,
            index: index.parse().ok()?,
            used: value("memory_used"),
            charged: value("memory_charged"),
            utilization: value("utilization"),
            temperature: value("temperature"),
            power_mw: value("power_mw"),
        })
    }
}

impl Process {
    /// Returns whether only the time differs.
    pub(super) fn same(&self, other: &Self) -> bool {
        let Self { time, .. } = *other;
        Self { time, ..self.clone() } == *other
    }

    /// Returns the record of the process's end.
    pub(super) fn left(self, time: u64) -> Self {
        Self {
            time,
            has_left: true,
            ..self
        }
    }
}

impl Entry {
    pub(super) fn time(&self) -> u64 {
        match self {
            Self::Gpu(gpu) => gpu.time,
            Self::Process(process) => process.time,
        }
    }

    pub(super) fn to_bytes(&self) -> [u8; LENGTH] {
        let mut out = Writer {
            bytes: [0; LENGTH],
            at: 0,
        };
        match self {
            Self::Gpu(gpu) => {
                out.put(&[GPU]);
                out.put(&gpu.time.to_le_bytes());
                out.put(&gpu.index.to_le_bytes());
                for value in [
                    gpu.used,
                    gpu.charged,
                    gpu.utilization,
                    gpu.temperature,
                    gpu.power_mw,
                ] {
                    out.put(&value.unwrap_or(u64::MAX).to_le_bytes());
                }
            }
            Self::Process(process) => {
                out.put(&[PROCESS]);
                out.put(&process.time.to_le_bytes());
                out.put(&process.pid.to_le_bytes());
                out.put(&process.uid.to_le_bytes());
                out.put(&process.memory.to_le_bytes());
                out.put(&process.swapped.to_le_bytes());
                out.put(&[process.priority.unwrap_or(UNKNOWN)]);
                out.put(&[
                    if process.is_frozen { FROZEN } else { 0 } | if process.has_left { LEFT } else { 0 }
                ]);
                let comm = process.comm.as_bytes();
                out.put(comm.get(..COMM).unwrap_or(comm));
            }
        }
        out.bytes
    }

    /// Decodes a record; `None` if it is of another kind.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut at = Reader(bytes);
        match at.take::<1>()? {
            [GPU] => {
                let (time, index) = (at.u64()?, u32::from_le_bytes(at.take()?));
                let mut known = || at.u64().map(|value| (value != u64::MAX).then_some(value));
                Some(Self::Gpu(Gpu {
                    time,
                    index,
                    used: known()?,
                    charged: known()?,
                    utilization: known()?,
                    temperature: known()?,
                    power_mw: known()?,
                }))
            }
            [PROCESS] => {
                let (time, pid) = (at.u64()?, u32::from_le_bytes(at.take()?));
                let uid = u32::from_le_bytes(at.take()?);
                let (memory, swapped) = (at.u64()?, at.u64()?);
                let ([priority], [flags]) = (at.take()?, at.take()?);
                let comm: [u8; COMM] = at.take()?;
                let comm = comm.split(|byte| *byte == 0).next().unwrap_or_default();
                Some(Self::Process(Process {
                    time,
                    pid,
                    uid,
                    comm: String::from_utf8_lossy(comm).into_owned(),
                    memory,
                    swapped,
                    priority: (priority != UNKNOWN).then_some(priority),
                    is_frozen: flags & FROZEN != 0,
                    has_left: flags & LEFT != 0,
                }))
            }
            _ => None,
        }
    }
}

struct Writer {
    bytes: [u8; LENGTH],
    at: usize,
}

impl Writer {
    /// Appends bytes; what does not fit is cut.
    fn put(&mut self, bytes: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(self.at).zip(bytes) {
            *to = *from;
        }
        self.at += bytes.len();
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

impl Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |value: Option<u64>| value.map_or("unknown".to_owned(), |value| value.to_string());
        match self {
            Self::Gpu(gpu) => write!(
                f,
                "{} gpu={} memory_used={} memory_charged={} utilization={} temperature={} power_mw={}",
                gpu.time,
                gpu.index,
                known(gpu.used),
                known(gpu.charged),
                known(gpu.utilization),
                known(gpu.temperature),
                known(gpu.power_mw)
            ),
            Self::Process(process) => write!(
                f,
                "{} pid={} uid={} comm={} memory.current={} swapped={} priority={} frozen={} left={}",
                process.time,
                process.pid,
                process.uid,
                word(&process.comm),
                process.memory,
                process.swapped,
                known(process.priority.map(Into::into)),
                u8::from(process.is_frozen),
                u8::from(process.has_left)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip() {
        let line = "3 memory_total=9 memory_used=70 memory_charged=60 utilization=5 temperature=unknown power_mw=70500";
        let gpu = Gpu::parse(1_700_000_000, line).unwrap();
        assert_eq!((gpu.index, gpu.used, gpu.temperature), (3, Some(70), None));
        let process = Process {
            time: 7,
            pid: u32::MAX,
            uid: 1000,
            comm: "fifteen bytes\nx".to_owned(),
            memory: u64::MAX,
            swapped: 1 << 40,
            priority: None,
            is_frozen: true,
            has_left: true,
        };
        let mut other = process.clone();
        (other.priority, other.is_frozen, other.comm) = (Some(15), false, String::new());
        for entry in [Entry::Gpu(gpu), Entry::Process(process), Entry::Process(other)] {
            assert_eq!(Entry::from_bytes(&entry.to_bytes()), Some(entry));
        }
        assert_eq!(Entry::from_bytes(&[0; LENGTH]), None);
    }
}
