//! The record of ended processes: a file with one line for each program that has ended, in the journal's line
//! format, for this daemon and later ones.
//!
//! A line is written right after the journal's line about the end, which contains the same record: of a
//! daemon that is killed in between, the next one finds the record there ([`History::add_missing`]).
//!
//! The file is bounded. When it is full, it is rewritten at half the size: each user keeps as many of the
//! latest lines as fit in an equal share, and the older ones are added up in one line, so that sums stay
//! exact and no user displaces the lines of others.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gcgroupfs_model::tree::{Exited, NR_EXITED};
use parking_lot::Mutex;
use serde::Deserialize;
use tracing::{info, warn};

use crate::journal::{line, state_file};

/// The file's name in the state directory.
const NAME: &str = "ended.jsonl";

/// Length of the file at which it is rewritten, bytes.
const FULL: usize = 8 << 20;

/// Number of records that are held in memory while they cannot be written.
const MAX_HELD: usize = 1024;

/// Number of the last lines that `exited` is made of when the daemon starts.
const NR_LAST: usize = 16 * NR_EXITED;

/// User of a line that adds up records of several users.
const SEVERAL: u32 = u32::MAX;

/// The record of ended processes.
#[derive(Debug)]
pub struct History {
    path: PathBuf,
    full: usize,
    state: Mutex<LogFile>,
}

#[derive(Debug, Default)]
struct LogFile {
    /// `None` if it could not be opened.
    file: Option<Arc<File>>,
    /// Length of the complete lines, bytes.
    length: u64,
    /// Number of the last line.
    last: u64,
    /// Records that could not be written.
    held: Vec<Exited>,
    is_told: bool,
}

impl History {
    /// Opens or creates the file. If that fails, records are held in memory and the next write tries again.
    pub fn open(directory: &Path) -> Self {
        Self::with_size(directory, FULL)
    }

    fn with_size(directory: &Path, full: usize) -> Self {
        let history = Self {
            path: directory.join(NAME),
            full,
            state: Mutex::default(),
        };
        history.append(Vec::new());
        history
    }

    /// Adds records. What cannot be written is held, and added up when there is too much of it.
    pub fn append(&self, records: Vec<Exited>) {
        let mut state = self.state.lock();
        state.held.extend(records);
        let written = self.write(&mut state);
        let path = self.path.display();
        match &written {
            Err(error) if !state.is_told => warn!("{path}: ended processes are not recorded: {error}"),
            Ok(()) if state.is_told => info!("{path}: ended processes are recorded again"),
            _ => {}
        }
        state.is_told = written.is_err();
        if state.held.len() > MAX_HELD {
            let lines = encode(0, &std::mem::take(&mut state.held));
            let kept = shortened(&lines, lines.len() / 2);
            state.held = records_of(&kept).collect();
        }
    }

    /// Writes the held records with one write(2), and rewrites a full file.
    fn write(&self, state: &mut LogFile) -> io::Result<()> {
        let is_there = state
            .file
            .as_ref()
            .is_some_and(|file| state_file::is_at(file, &self.path));
        if !is_there {
            let file = self.reopened()?;
            (state.file, state.length, state.last) = (file.file, file.length, file.last);
        }
        let Some(file) = state.file.clone() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let lines = encode(state.last, &state.held);
        if let Err(error) = file.write_all_at(&lines, state.length) {
            file.set_len(state.length)?;
            return Err(error);
        }
        state.length += lines.len() as u64;
        state.last += state.held.len() as u64;
        state.held.clear();
        if state.length > self.full as u64 {
            let text = shortened(&state_file::read(&file, state.length)?, self.full / 2);
            let (fresh, file) = state_file::Fresh::beside(&self.path)?;
            file.write_all_at(&text, 0)?;
            fresh.install(&self.path)?;
            (state.file, state.length) = (Some(Arc::new(file)), text.len() as u64);
        }
        Ok(())
    }

    /// Returns the state of the file that is there now, or of a new one.
    fn reopened(&self) -> io::Result<LogFile> {
        let file = state_file::open(&self.path).map_err(|refusal| io::Error::other(refusal.to_string()))?;
        let text = state_file::read(&file, file.metadata()?.len())?;
        let length = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        file.set_len(length as u64)?;
        let last = lines_of(&text)
            .filter_map(|line| Some(line::open("", line)?.0))
            .max();
        Ok(LogFile {
            file: Some(Arc::new(file)),
            length: length as u64,
            last: last.unwrap_or(0),
            ..LogFile::default()
        })
    }

    /// Returns all lines of the file as they are now.
    pub(crate) fn lines(&self) -> Lines {
        let state = self.state.lock();
        Lines {
            file: state.file.clone(),
            at: 0,
            end: state.length,
        }
    }

    fn text(&self) -> Vec<u8> {
        let Lines { file, end, .. } = self.lines();
        let text = file.map(|file| state_file::read(&file, end));
        text.and_then(Result::ok).unwrap_or_default()
    }

    /// Returns the last records for `exited`, the oldest first.
    pub fn last(&self) -> Vec<Exited> {
        let text = self.text();
        let lines: Vec<_> = lines_of(&text).collect();
        let first = lines.len().saturating_sub(NR_LAST);
        let last = lines.into_iter().skip(first).filter_map(decode);
        last.filter(|record| record.others == 0).collect()
    }

    /// Adds those of the records that the file does not have.
    pub fn add_missing(&self, mut records: Vec<Exited>) {
        if records.is_empty() {
            return;
        }
        let text = self.text();
        for known in records_of(&text) {
            records.retain(|record| !record.is_same(&known));
        }
        self.append(records);
    }
}

/// Lines of the file that are still to be read.
#[derive(Debug)]
pub(crate) struct Lines {
    file: Option<Arc<File>>,
    at: u64,
    end: u64,
}

impl Lines {
    /// Returns the number of bytes that are left.
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.end - self.at).unwrap_or(usize::MAX)
    }

    /// Returns the records of the next lines, about 16 KiB, for which `is_wanted` holds.
    pub(crate) fn next(&mut self, is_wanted: impl Fn(&[u8]) -> bool) -> Vec<Exited> {
        const CHUNK: u64 = 16 << 10;
        let mut text = vec![0; usize::try_from(CHUNK.min(self.end - self.at)).unwrap_or(0)];
        let read = self
            .file
            .as_ref()
            .map(|file| file.read_exact_at(&mut text, self.at));
        // No line is longer than a chunk.
        let length = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        if !matches!(read, Some(Ok(()))) || length == 0 {
            self.at = self.end;
            return Vec::new();
        }
        self.at += length as u64;
        let lines = lines_of(&text[..length]).filter(|line| is_wanted(line));
        lines.filter_map(decode).collect()
    }
}

fn lines_of(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|byte| *byte == b'\n')
}

/// Returns the record of a line; `None` if the line is damaged, or the file's first, which has no record.
fn decode(line: &[u8]) -> Option<Exited> {
    let (number, record) = line::decode("", line)?;
    (number != 0).then_some(record)
}

fn records_of(text: &[u8]) -> impl Iterator<Item = Exited> {
    lines_of(text).filter_map(decode)
}

/// Returns the lines of records, the first with the number after `last`.
fn encode(last: u64, records: &[Exited]) -> Vec<u8> {
    let numbered = (last + 1..).zip(records);
    // Cannot fail: the keys are text.
    let lines = numbered
        .map(|(number, record)| line::encode("", number, &serde_json::to_vec(record).unwrap_or_default()));
    lines.flatten().collect()
}

/// Returns the lines of a text shortened to about `most` bytes: the oldest lines of the users with the most
/// bytes are added up, one line for each of these users.
fn shortened(text: &[u8], most: usize) -> Vec<u8> {
    #[derive(Deserialize)]
    struct Owner {
        uid: u32,
    }
    let owned = |line| {
        Some((
            line,
            line::decode::<Owner>("", line).filter(|(number, _)| *number != 0)?,
        ))
    };
    let lines: Vec<(&[u8], u64, u32)> = lines_of(text)
        .filter_map(owned)
        .map(|(line, (number, owner))| (line, number, owner.uid))
        .collect();
    let mut left = BTreeMap::<u32, usize>::new();
    for (line, _, uid) in &lines {
        *left.entry(*uid).or_default() += line.len();
    }
    let share = share(left.values().copied().collect(), most);
    // What is added up of each user, and the number of its first line.
    let mut sums = BTreeMap::<u32, (u64, Exited)>::new();
    let mut kept = Vec::new();
    for (line, number, uid) in lines {
        let bytes = left.entry(uid).or_default();
        if *bytes <= share {
            kept.push((number, line.to_vec()));
            continue;
        }
        *bytes -= line.len();
        if let Some(record) = decode(line) {
            add(&mut sums, uid, number, record);
        }
    }
    // So many users that the sums alone are too long.
    while sums.len() > 1 && sums.len() > most / LONGEST_SUM {
        let Some((_, (number, sum))) = sums.pop_first() else {
            break;
        };
        add(&mut sums, SEVERAL, number, sum);
    }
    let sums = sums.into_iter().map(|(uid, (number, mut sum))| {
        sum.identity.uid = uid;
        (number, encode(number - 1, &[sum]))
    });
    kept.extend(sums);
    kept.sort_unstable_by_key(|(number, _)| *number);
    kept.into_iter().flat_map(|(_, line)| line).collect()
}

/// Length of a line with sums, bytes, at most about.
const LONGEST_SUM: usize = 2048;

fn add(sums: &mut BTreeMap<u32, (u64, Exited)>, uid: u32, number: u64, record: Exited) {
    match sums.get_mut(&uid) {
        Some((first, sum)) => {
            *first = (*first).min(number);
            sum.add(&record);
        }
        None => _ = sums.insert(uid, (number, record)),
    }
}

/// Returns the most bytes that a user may keep, so that the users with these bytes keep at most `most`.
fn share(mut bytes: Vec<usize>, most: usize) -> usize {
    bytes.sort_unstable();
    let (mut rest, mut nr_users) = (most, bytes.len());
    for bytes in bytes {
        if bytes > rest / nr_users {
            return rest / nr_users;
        }
        (rest, nr_users) = (rest - bytes, nr_users - 1);
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use gcgroupfs_model::text::command_line;
    use gcgroupfs_model::tree::{Identity, Sums};

    fn record(uid: u32, pid: u32) -> Exited {
        Exited {
            identity: Identity {
                pid,
                uid,
                start_time: 7,
                comm: "a\nprogram".into(),
                args: command_line(&[b"/bin/\xff\x1b[2J\0".as_slice(), &[b'\n'; 2 << 20]].concat()),
                ..Identity::default()
            },
            group: "team/a".to_owned(),
            byte_seconds: u128::from(u64::MAX) + 1,
            gpus: BTreeMap::from([("GPU-0".to_owned(), 5)]),
            sums: Sums {
                usage_nsec: 5,
                ..Sums::default()
            },
            ..Exited::default()
        }
    }

    fn all(history: &History) -> Vec<Exited> {
        records_of(&history.text()).collect()
    }

    fn pids(history: &History) -> Vec<u32> {
        all(history).iter().map(|record| record.identity.pid).collect()
    }

    #[test]
    fn record_of_a_hostile_process_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        History::open(directory.path()).append(vec![record(1, 2)]);
        let history = History::open(directory.path());
        assert_eq!(all(&history), [record(1, 2)]);
        assert_eq!(history.last(), [record(1, 2)]);
        let args = &record(1, 2).identity.args;
        assert!(args.starts_with("/bin/\\377\\033[2J \\012\\012"), "{args}");
        assert!(args.ends_with("...") && args.len() <= 512, "{args}");
    }

    #[test]
    fn file_that_is_cut_anywhere_loses_the_last_line_at_most() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(NAME);
        let history = History::open(directory.path());
        history.append(vec![record(1, 1)]);
        let before = fs::read(&path).unwrap().len();
        history.append(vec![record(1, 2)]);
        let text = fs::read(&path).unwrap();
        for end in before..text.len() {
            fs::write(&path, &text[..end]).unwrap();
            let history = History::open(directory.path());
            assert_eq!(pids(&history), [1], "cut at {end}");
            history.add_missing(vec![record(1, 1), record(1, 3)]);
            assert_eq!(pids(&history), [1, 3], "cut at {end}");
        }
    }

    #[test]
    fn user_with_many_processes_displaces_no_lines_and_no_sums_of_others() {
        const FULL: usize = 64 << 10;
        let directory = tempfile::tempdir().unwrap();
        let history = History::with_size(directory.path(), FULL);
        history.append((1..=5).map(|pid| record(1, pid)).collect());
        for pid in 0..2000 {
            history.append(vec![record(2, pid)]);
            assert!(history.text().len() < FULL + 2 * LONGEST_SUM);
        }
        let all = all(&history);
        let of = |uid| all.iter().filter(move |record| record.identity.uid == uid);
        assert_eq!(
            of(1).cloned().collect::<Vec<_>>(),
            (1..=5).map(|pid| record(1, pid)).collect::<Vec<_>>()
        );
        assert!(of(2).count() > 20 && of(2).next_back().unwrap().identity.pid == 1999);
        assert_eq!(of(2).map(|record| record.others + 1).sum::<u64>(), 2000);
        assert_eq!(of(2).map(|record| record.sums.usage_nsec).sum::<u64>(), 10_000);
        assert_eq!(of(2).map(|record| record.gpus["GPU-0"]).sum::<u64>(), 10_000);
        let byte_seconds = of(2).map(|record| record.byte_seconds).sum::<u128>();
        assert_eq!(byte_seconds, 2000 * record(2, 1).byte_seconds);
        // Many users.
        (0..2000).for_each(|uid| history.append(vec![record(uid, 1)]));
        let text = history.text();
        assert!(text.len() < FULL + 2 * LONGEST_SUM);
        let nr = records_of(&text).map(|record| record.others + 1).sum::<u64>();
        assert_eq!(nr, 4005);
    }

    #[test]
    fn records_are_held_while_the_directory_cannot_be_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(NAME);
        fs::create_dir(&path).unwrap();
        let history = History::open(directory.path());
        (0..3000).for_each(|pid| history.append(vec![record(1, pid)]));
        fs::remove_dir(&path).unwrap();
        history.append(vec![record(1, 9)]);
        let nr = all(&history).iter().map(|record| record.others + 1).sum::<u64>();
        assert_eq!(nr, 3001);
        fs::remove_file(&path).unwrap();
        history.append(vec![record(1, 10)]);
        assert_eq!(pids(&history), [10], "another file is made");
    }
}
