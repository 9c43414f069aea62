//! The table of GVM's files, and what each does with the daemon's.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use gcgroup_client::{Answered, Client};
use gcgroupfs_fuse::view::{Kind, ROOT, View};
use nix::errno::Errno;
use parking_lot::Mutex;
use serde::Deserialize;

use super::number;

/// Directories per physical GPU, for its MIG instances.
const PER_GPU: u8 = 8;

/// Time in which a process usually answers which of its kernels have ended.
const ANSWER: Duration = Duration::from_millis(10);

/// Where a file lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    /// `processes`
    Processes,
    /// `processes/PID`
    Process(u32),
    /// `processes/PID/N`; the index of the GPU in the daemon's file `devices`.
    Device(u32, u8),
}

/// Row of the table.
#[derive(Debug)]
struct Row {
    name: &'static str,
    what: What,
}

/// Contents of a file, and the effect of a write.
#[derive(Debug)]
enum What {
    /// The pids.
    Pids,
    /// A number without effect that is kept: the one shown unless written.
    Kept(u64),
    /// A file of the daemon as it is.
    Text(&'static str),
    /// A number that a file of the daemon shows.
    Shown(&'static str),
    /// A setting of the daemon, and what a number must be to be written to it.
    Setting(&'static str, Accepted),
}

#[derive(Debug, Clone, Copy)]
enum Accepted {
    Any,
    /// Numbers up to one.
    UpTo(u64),
    /// Any number that keeps memory.min <= memory.low <= memory.limit.
    InOrder,
}

use Accepted::{Any, InOrder, UpTo};
use What::{Kept, Pids, Setting, Shown, Text};

const ROOT_ROWS: &[Row] = &[
    row("memory.watermark.high", Kept(95)),
    row("memory.watermark.low", Kept(85)),
    row("eviction.grace_period_ms", Setting(GRACE, Any)),
    row("eviction.notify_throttle_ms", Kept(1000)),
];

const PROCESSES_ROWS: &[Row] = &[row("list", Pids)];

const DEVICE_ROWS: &[Row] = &[
    row("memory.limit", Setting(LIMIT, Any)),
    row("memory.limit.high", Setting(LIMIT, InOrder)),
    row("memory.limit.low", Setting(LOW, InOrder)),
    row("memory.limit.min", Setting(MIN, InOrder)),
    row("memory.current", Shown("memory.current")),
    row("memory.swap.current", Shown("memory.swap.current")),
    row("compute.priority", Setting(PRIORITY, UpTo(16))),
    row("compute.freeze", Setting("compute.freeze", UpTo(1))),
    row("gcgroup.stat", Text("gcgroup.stat")),
];

const MIN: &str = "memory.min";
const LOW: &str = "memory.low";
const LIMIT: &str = "memory.limit";
const PRIORITY: &str = "compute.priority";
const GRACE: &str = "memory.notice.grace";

/// The greatest priority number of the daemon, and its longest grace period.
const LAST_PRIORITY: u64 = gcgroupfs_model::arbiter::MAX_PRIORITY as u64;
const MOST_GRACE: u64 = gcgroupfs_model::tree::MOST_GRACE as u64;

const fn row(name: &'static str, what: What) -> Row {
    Row { name, what }
}

impl Place {
    fn rows(self) -> &'static [Row] {
        match self {
            Self::Root => ROOT_ROWS,
            Self::Processes => PROCESSES_ROWS,
            Self::Process(_) => &[],
            Self::Device(..) => DEVICE_ROWS,
        }
    }

    /// Returns the path of a file of the daemon.
    fn path(self, file: &str) -> String {
        match self {
            Self::Root | Self::Processes => file.to_owned(),
            Self::Process(pid) => format!("{pid}/{file}"),
            Self::Device(pid, index) => format!("{pid}/{index}/{file}"),
        }
    }

    /// Returns the directory's number, or that of its file in a row: from the lowest bit eight bits for the
    /// file, eight for the GPU, and the pid.
    fn number(self, row: Option<usize>) -> u64 {
        let (pid, second, below) = match self {
            Self::Root => (0, 0, 0),
            Self::Processes => (0, 1, 0),
            Self::Process(pid) => (pid, 0, 0),
            Self::Device(pid, index) => (pid, 1, index),
        };
        let file = row.map_or(0, |row| row as u64 + 1);
        ROOT + (u64::from(pid) << 20 | second << 16 | u64::from(below) << 8 | file)
    }

    /// Returns the place of a number, and the row unless it is the directory itself.
    fn of(number: u64) -> nix::Result<(Self, Option<usize>)> {
        let number = number.checked_sub(ROOT).ok_or(Errno::ENOENT)?;
        let pid = u32::try_from(number >> 20).map_err(|_| Errno::ENOENT)?;
        let byte = |shift: u32| u8::try_from(number >> shift & 0xff).unwrap_or(u8::MAX);
        let place = match (pid, number >> 16 & 0xf, byte(8)) {
            (0, 0, 0) => Self::Root,
            (0, 1, 0) => Self::Processes,
            (pid, 0, 0) => Self::Process(pid),
            (pid, 1, index) if pid != 0 => Self::Device(pid, index),
            _ => return Err(Errno::ENOENT),
        };
        match usize::from(byte(0)).checked_sub(1) {
            Some(row) if row >= place.rows().len() => Err(Errno::ENOENT),
            row => Ok((place, row)),
        }
    }
}

/// The files, from the daemon's socket.
pub(super) struct Gvm {
    socket: PathBuf,
    /// `None` before the first request and after a failure, since daemons are restarted.
    client: Mutex<Option<Client>>,
    /// Numbers that were written to the files of the root directory.
    kept: Mutex<[u64; ROOT_ROWS.len()]>,
}

/// Line of the daemon's list of processes.
#[derive(Debug, Deserialize)]
struct Line {
    pid: String,
}

impl Gvm {
    pub(super) fn new(socket: &Path) -> Self {
        let mut kept = [0; ROOT_ROWS.len()];
        for (number, row) in kept.iter_mut().zip(ROOT_ROWS) {
            if let Kept(first) = row.what {
                *number = first;
            }
        }
        Self {
            socket: socket.to_owned(),
            client: Mutex::new(None),
            kept: Mutex::new(kept),
        }
    }

    /// Performs a request, again on a new connection if the first one fails.
    ///
    /// # Errors
    /// The daemon's; `EIO` if none answers.
    fn ask<T>(&self, request: impl Fn(&mut Client) -> Answered<T>) -> nix::Result<T> {
        let mut client = self.client.lock();
        let kept = client
            .take()
            .and_then(|mut old| Some((request(&mut old).ok()?, old)));
        let anew = || {
            let mut new = Client::connect(&self.socket)?;
            Ok::<_, anyhow::Error>((request(&mut new)?, new))
        };
        let (answer, used) = kept.map_or_else(anew, Ok).map_err(|_| Errno::EIO)?;
        *client = Some(used);
        answer.map_err(|refusal| match refusal.errno {
            Errno::ENODEV => Errno::ENOENT,
            errno => errno,
        })
    }

    /// Returns a file of the daemon.
    fn get(&self, place: Place, file: &str) -> nix::Result<String> {
        self.ask(|client| client.get(&place.path(file)))
    }

    fn number(&self, place: Place, file: &str) -> nix::Result<u64> {
        number::shown(&self.get(place, file)?)
    }

    fn pids(&self) -> nix::Result<BTreeSet<u32>> {
        let lines = self.ask(|client| client.list(&[]))?;
        let lines = lines.lines().map(serde_json::from_str::<Line>);
        Ok(lines.flatten().filter_map(|line| line.pid.parse().ok()).collect())
    }

    /// Returns whether the process has used the GPU.
    fn has_used(&self, place: Place) -> nix::Result<bool> {
        let used = |file| Ok(self.number(place, file)? > 0);
        Ok(used("memory.peak")? || used("memory.current")? || used("memory.swap.current")?)
    }

    /// Returns the GPUs that the process has used.
    fn devices(&self, pid: u32) -> nix::Result<Vec<u8>> {
        let mut found = Vec::new();
        for index in 0..u8::MAX / PER_GPU {
            match self.has_used(Place::Device(pid, index)) {
                Ok(true) => found.push(index),
                Ok(false) => {}
                Err(Errno::ENOENT) => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(found)
    }

    fn set(&self, place: Place, file: &str, accepted: Accepted, number: u64) -> nix::Result<()> {
        let value = |of| {
            if of == file {
                Ok(number)
            } else {
                self.number(place, of)
            }
        };
        let is_accepted = match accepted {
            Any => true,
            UpTo(most) => number <= most,
            InOrder => [value(MIN)?, value(LOW)?, value(LIMIT)?].is_sorted(),
        };
        if !is_accepted {
            return Err(Errno::EINVAL);
        }
        let number = match file {
            PRIORITY => number.min(LAST_PRIORITY),
            GRACE => number.min(MOST_GRACE),
            _ => number,
        };
        let value = number::written(number);
        self.ask(|client| client.set(&place.path(file), &value))
    }
}

impl View for Gvm {
    fn kind(&self, node: u64) -> nix::Result<Kind> {
        let (place, row) = Place::of(node)?;
        Ok(match row.and_then(|row| place.rows().get(row)) {
            None => Kind::Directory,
            Some(row) => Kind::File(match row.what {
                Kept(_) | Setting(..) => 0o644,
                Pids | Text(_) | Shown(_) => 0o444,
            }),
        })
    }

    fn lookup(&self, directory: u64, name: &str) -> nix::Result<u64> {
        let (place, _) = Place::of(directory)?;
        let rows = place.rows();
        if let Some(row) = rows.iter().position(|row| row.name == name) {
            return Ok(place.number(Some(row)));
        }
        // As they are listed: no leading zeros or signs.
        let parsed = name
            .parse::<u32>()
            .ok()
            .filter(|number| number.to_string() == name);
        match (place, parsed) {
            (Place::Root, _) if name == "processes" => Ok(Place::Processes.number(None)),
            (Place::Processes, Some(pid)) => {
                self.ask(|client| client.get(&format!("{pid}/memory.current")))?;
                Ok(Place::Process(pid).number(None))
            }
            (Place::Process(pid), Some(number)) => {
                let number = u8::try_from(number).map_err(|_| Errno::ENOENT)?;
                let index = number / PER_GPU;
                match number.is_multiple_of(PER_GPU) && self.has_used(Place::Device(pid, index))? {
                    true => Ok(Place::Device(pid, index).number(None)),
                    false => Err(Errno::ENOENT),
                }
            }
            _ => Err(Errno::ENOENT),
        }
    }

    fn list(&self, directory: u64) -> nix::Result<Vec<(String, u64)>> {
        let (place, _) = Place::of(directory)?;
        let numbered = |name: u32, place: Place| (name.to_string(), place.number(None));
        let mut entries: Vec<_> = match place {
            Place::Root => vec![("processes".to_owned(), Place::Processes.number(None))],
            Place::Processes => {
                let pids = self.pids()?.into_iter();
                pids.map(|pid| numbered(pid, Place::Process(pid))).collect()
            }
            Place::Process(pid) => {
                let devices = self.devices(pid)?.into_iter();
                let name = |index| u32::from(index) * u32::from(PER_GPU);
                devices
                    .map(|index| numbered(name(index), Place::Device(pid, index)))
                    .collect()
            }
            Place::Device(..) => Vec::new(),
        };
        let rows = place.rows().iter().enumerate();
        entries.extend(rows.map(|(at, row)| (row.name.to_owned(), place.number(Some(at)))));
        Ok(entries)
    }

    fn read(&self, file: u64) -> nix::Result<String> {
        let (place, at) = Place::of(file)?;
        let at = at.ok_or(Errno::EISDIR)?;
        let number = match (&place.rows().get(at).ok_or(Errno::ENOENT)?.what, place) {
            (Pids, _) => {
                let pids = self.pids()?;
                return Ok(
                    "PID\n".to_owned() + &pids.iter().map(|pid| format!("{pid}\n")).collect::<String>()
                );
            }
            (Text(name), place) => {
                let text = self.get(place, name)?;
                if text.ends_with(" 0\n") {
                    return Ok(text);
                }
                // Kernels are pending, or the process has not answered: the socket does not wait for it.
                thread::sleep(ANSWER);
                return self.get(place, name);
            }
            (Shown(name) | Setting(name, _), place) => self.number(place, name)?,
            (Kept(_), _) => *self.kept.lock().get(at).ok_or(Errno::ENOENT)?,
        };
        Ok(format!("{number}\n"))
    }

    fn write(&self, file: u64, data: &[u8]) -> nix::Result<()> {
        let (place, at) = Place::of(file)?;
        let at = at.ok_or(Errno::EISDIR)?;
        let row = place.rows().get(at).ok_or(Errno::ENOENT)?;
        let number = number::parse(data)?;
        match (&row.what, place) {
            (Setting(name, accepted), place) => self.set(place, name, *accepted, number),
            (Kept(_), _) => {
                *self.kept.lock().get_mut(at).ok_or(Errno::ENOENT)? = number;
                Ok(())
            }
            _ => Err(Errno::EACCES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_places() {
        let places = [
            Place::Root,
            Place::Processes,
            Place::Process(1),
            Place::Process(4_194_304),
            Place::Device(1, 0),
            Place::Device(u32::MAX, 31),
        ];
        let mut seen = BTreeSet::new();
        for place in places {
            for row in [None].into_iter().chain((0..place.rows().len()).map(Some)) {
                let number = place.number(row);
                assert!(seen.insert(number), "{place:?} {row:?}");
                assert_eq!(Place::of(number), Ok((place, row)));
            }
            assert_eq!(
                Place::of(place.number(Some(place.rows().len()))),
                Err(Errno::ENOENT)
            );
        }
        assert_eq!(Place::Root.number(None), ROOT);
        for number in [0, u64::MAX, ROOT + (2 << 16), ROOT + (1 << 8)] {
            assert_eq!(Place::of(number), Err(Errno::ENOENT), "{number:#x}");
        }
    }
}
