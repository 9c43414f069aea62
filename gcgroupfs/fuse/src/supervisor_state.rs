//! State that a supervisor keeps for the daemons that it starts one after another: /dev/fuse and the
//! listening socket, and what one daemon has told the kernel and the next must know. The contents are opaque
//! to this module.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::str::FromStr;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use parking_lot::Mutex;

use gcgroupfs_sys as sys;

/// Capacity for processes, and for polled files. What does not fit is unknown to the next daemon: a reader
/// may then briefly miss a process, and a poller sleep until the next change.
const NR_SLOTS: u64 = 16 << 10;

/// State that a daemon takes over from the supervisor.
#[derive(Debug)]
pub struct Inherited {
    /// The open /dev/fuse.
    pub device: OwnedFd,
    /// The mount's device number.
    pub number: u64,
    /// The listening socket.
    pub listener: OwnedFd,
    /// FUSE_INIT, which only the first daemon could read from the device.
    pub init: Vec<u8>,
    /// Governed processes.
    pub roster: Arc<Slots<24>>,
    /// Polled files.
    pub pollers: Arc<Slots<8>>,
    /// The configuration in force.
    pub configuration: Arc<Note>,
    /// The daemon's end of its socket to the supervisor: it answers each packet with one, and closes the
    /// socket by ending.
    pub line: OwnedFd,
}

/// [`Inherited`] as a command line argument: numbers of inherited descriptors, and the mount's device number.
#[derive(Debug, Clone)]
pub struct Inheritance {
    numbers: [i32; 7],
    device: u64,
}

/// State held by the supervisor.
#[derive(Debug)]
pub struct SupervisorState {
    pub device: OwnedFd,
    number: u64,
    pub listener: OwnedFd,
    init: OwnedFd,
    roster: OwnedFd,
    pollers: OwnedFd,
    configuration: OwnedFd,
}

/// Names of the descriptors that outlive a supervisor, in the order of [`SupervisorState::files`].
pub const NAMES: [&str; 5] = ["device", "init", "roster", "pollers", "configuration"];

impl SupervisorState {
    /// Returns the descriptors that the next supervisor needs to continue with the mount.
    pub fn files(&self) -> [&OwnedFd; NAMES.len()] {
        [
            &self.device,
            &self.init,
            &self.roster,
            &self.pollers,
            &self.configuration,
        ]
    }

    /// Continues with the [`files`](Self::files) of a supervisor that was killed, for the mount with that
    /// device number.
    pub fn again(files: [OwnedFd; NAMES.len()], number: u64, listener: OwnedFd) -> Self {
        let [device, init, roster, pollers, configuration] = files;
        Self {
            device,
            number,
            listener,
            init,
            roster,
            pollers,
            configuration,
        }
    }

    /// # Errors
    /// Out of memory or descriptors.
    pub fn new((device, number): (OwnedFd, u64), listener: OwnedFd, init: &[u8]) -> io::Result<Self> {
        let memory = |name| memfd_create(name, MFdFlags::MFD_CLOEXEC);
        let first = memory("gcgroup-init")?;
        let first = File::from(first);
        first.write_all_at(init, 0)?;
        Ok(Self {
            device,
            number,
            listener,
            init: first.into(),
            roster: memory("gcgroup-roster")?,
            pollers: memory("gcgroup-pollers")?,
            configuration: memory("gcgroup-configuration")?,
        })
    }

    /// Returns the argument for a daemon, which inherits these descriptors and `line`, its socket to the
    /// supervisor.
    ///
    /// # Errors
    /// A descriptor's close-on-exec flag cannot be changed; no such case is known.
    pub fn pass_on(&self, line: &OwnedFd) -> io::Result<Inheritance> {
        let all = [
            &self.device,
            &self.listener,
            &self.init,
            &self.roster,
            &self.pollers,
            &self.configuration,
            line,
        ];
        for fd in all {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(Inheritance {
            numbers: all.map(AsRawFd::as_raw_fd),
            device: self.number,
        })
    }
}

impl Inheritance {
    /// Takes ownership of the inherited descriptors. Call once.
    ///
    /// # Errors
    /// A descriptor was not inherited.
    pub fn take(&self) -> io::Result<Inherited> {
        let mut taken = Vec::new();
        for number in self.numbers {
            taken.push(sys::inherited(number)?);
        }
        let taken: [OwnedFd; 7] = taken.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        let [device, listener, first, roster, pollers, configuration, line] = taken;
        let mut init = Vec::new();
        let mut first = File::from(first);
        first.seek(SeekFrom::Start(0))?;
        first.read_to_end(&mut init)?;
        Ok(Inherited {
            device,
            number: self.device,
            listener,
            init,
            roster: Arc::new(Slots::new(roster.into())),
            pollers: Arc::new(Slots::new(pollers.into())),
            configuration: Arc::new(Note(configuration.into())),
            line,
        })
    }
}

impl fmt::Display for Inheritance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for number in self.numbers {
            write!(f, "{number},")?;
        }
        write!(f, "{}", self.device)
    }
}

impl FromStr for Inheritance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "is reserved for the supervisor".to_owned();
        let (numbers, device) = text.rsplit_once(',').ok_or_else(wrong)?;
        let numbers: Result<Vec<i32>, _> = numbers.split(',').map(str::parse).collect();
        let numbers = numbers.map_err(|_| wrong())?.try_into().map_err(|_| wrong())?;
        let device = device.parse().map_err(|_| wrong())?;
        Ok(Self { numbers, device })
    }
}

/// A text in shared memory that outlives its writer.
#[derive(Debug)]
pub struct Note(File);

impl Note {
    /// Replaces the text. A writer that is killed meanwhile leaves no text.
    pub fn put(&self, text: &str) {
        let result =
            (self.0.set_len(0)).and_then(|()| self.0.write_all_at(format!("{text}\n").as_bytes(), 0));
        if let Err(error) = result {
            tracing::debug!(%error, "cannot store a record for the next daemon");
        }
    }

    /// Returns the text written last, if any.
    pub fn get(&self) -> Option<String> {
        let mut bytes = Vec::new();
        let mut file = &self.0;
        file.seek(SeekFrom::Start(0)).ok()?;
        file.read_to_end(&mut bytes).ok()?;
        String::from_utf8(bytes).ok().filter(|text| !text.is_empty())
    }
}

/// Records of `N` bytes in shared memory, which outlive their writer. Each is written by one pwrite(2), so
/// none is torn.
#[derive(Debug)]
pub struct Slots<const N: usize> {
    file: File,
    state: Mutex<State<N>>,
}

#[derive(Debug)]
struct State<const N: usize> {
    at: HashMap<[u8; N], u64>,
    free: Vec<u64>,
    next: u64,
}

impl<const N: usize> Slots<N> {
    fn new(file: File) -> Self {
        let state = State {
            at: HashMap::new(),
            free: Vec::new(),
            next: 0,
        };
        Self {
            file,
            state: Mutex::new(state),
        }
    }

    /// Returns the records left by a predecessor. Each is kept until it is [`remove`](Self::remove)d. Call
    /// once, before [`put`](Self::put).
    ///
    /// # Errors
    /// The memory cannot be read.
    pub fn inherit(&self) -> io::Result<Vec<[u8; N]>> {
        let mut bytes = Vec::new();
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut bytes)?;
        let mut state = self.state.lock();
        let (records, _) = bytes.as_chunks::<N>();
        for (record, at) in records.iter().zip(0..) {
            if *record == [0; N] || state.at.contains_key(record) {
                state.free.push(at);
            } else {
                state.at.insert(*record, at);
            }
            state.next = at + 1;
        }
        Ok(state.at.keys().copied().collect())
    }

    /// Stores a record, if there is room and it is not stored yet.
    pub fn put(&self, record: [u8; N]) {
        let mut state = self.state.lock();
        if state.at.contains_key(&record) {
            return;
        }
        let next = state.next;
        let Some(at) = state.free.pop().or_else(|| (next < NR_SLOTS).then_some(next)) else {
            return;
        };
        state.next = next.max(at + 1);
        if self.write(at, record) {
            state.at.insert(record, at);
        } else {
            state.free.push(at);
        }
    }

    pub fn remove(&self, record: [u8; N]) {
        let mut state = self.state.lock();
        if let Some(at) = state.at.remove(&record) {
            self.write(at, [0; N]);
            state.free.push(at);
        }
    }

    fn write(&self, at: u64, record: [u8; N]) -> bool {
        let result = self.file.write_all_at(&record, at * N as u64);
        if let Err(error) = &result {
            tracing::debug!(%error, "cannot store a record for the next daemon");
        }
        result.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_outlive_their_writer() {
        let file = tempfile::tempfile().unwrap();
        let first = Slots::<8>::new(file.try_clone().unwrap());
        for number in 1..=5_u64 {
            first.put(number.to_le_bytes());
        }
        first.put(1_u64.to_le_bytes());
        first.remove(3_u64.to_le_bytes());
        drop(first);
        let second = Slots::<8>::new(file.try_clone().unwrap());
        let mut found: Vec<_> = second
            .inherit()
            .unwrap()
            .into_iter()
            .map(u64::from_le_bytes)
            .collect();
        found.sort_unstable();
        assert_eq!(found, [1, 2, 4, 5]);
        second.put(6_u64.to_le_bytes());
        second.remove(1_u64.to_le_bytes());
        assert_eq!(file.metadata().unwrap().len(), 40, "places are used again");
        assert_eq!(Slots::<8>::new(file).inherit().unwrap().len(), 4);
    }

    #[test]
    fn note_is_what_was_written_last() {
        let file = tempfile::tempfile().unwrap();
        let note = Note(file.try_clone().unwrap());
        assert_eq!(note.get(), None);
        for text in ["long text", "short", ""] {
            note.put(text);
            assert_eq!(Note(file.try_clone().unwrap()).get(), Some(format!("{text}\n")));
        }
    }

    #[test]
    fn inheritance_is_read_as_it_is_written() {
        let text = "3,4,5,6,7,8,9,58";
        assert_eq!(text.parse::<Inheritance>().unwrap().to_string(), text);
        for wrong in ["", "1", "3,4,5,6,7,8,58", "a,4,5,6,7,8,9,58"] {
            assert!(wrong.parse::<Inheritance>().is_err(), "{wrong}");
        }
    }
}
