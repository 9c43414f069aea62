//! Texts and lists of processes or groups that a client reads in parts. Lists are rendered part by part, so
//! that a long one lets other clients in between.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use gcgroup_abi::message::{Answer, MAX_PART};
use serde::{Serialize, Serializer};

use super::super::initial_group::Credentials;
use super::is_open;
use crate::history::Lines;
use gcgroupfs_model::error::{Error, Result};
use gcgroupfs_model::file::{self, ControlFile};
use gcgroupfs_model::tree::{Directory, GroupId, ProcessId, Tree};

/// Time after which a part of a list ends, although there is room for more.
const PART_TIME: Duration = Duration::from_millis(1);

/// Maximum number of files that a list request may name per directory.
const MAX_FILES: usize = 64;

/// One line of the answer to a request for processes.
#[derive(Debug, Serialize)]
struct Line<'a> {
    pid: &'a str,
    /// `None` for the process's own directory.
    device: Option<&'a str>,
    uid: u32,
    comm: &'a str,
    /// Path of its group; empty for the root. Absent if the client could not find it out on the mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    files: Files,
}

/// One line of the answer to a request for groups.
#[derive(Debug, Serialize)]
struct GroupLine<'a> {
    /// Path of the group.
    group: &'a str,
    /// `None` for the group's own directory.
    device: Option<&'a str>,
    /// Owner of the group's files.
    uid: u32,
    files: Files,
}

/// Contents of each requested file, by name, without files that do not exist.
#[derive(Debug)]
struct Files(Vec<(&'static str, String)>);

impl Serialize for Files {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, text)| (name, text)))
    }
}

/// Text or list that a client is reading.
#[derive(Debug, Default)]
pub struct Reading {
    /// Rendered text.
    text: Vec<u8>,
    /// Where the text begins in the whole, in bytes.
    begin: usize,
    /// Processes or groups still to be listed.
    rest: Rest,
    /// Files that a list shows.
    files: Vec<&'static ControlFile>,
}

#[derive(Debug, Default)]
enum Rest {
    #[default]
    Nothing,
    Processes(VecDeque<ProcessId>),
    /// With their paths.
    Groups(VecDeque<(String, GroupId)>),
    /// Ended processes, all or those with this pid.
    Ended(Lines, Option<u32>),
}

impl Rest {
    fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Processes(ids) => ids.len(),
            Self::Groups(groups) => groups.len(),
            Self::Ended(lines, _) => lines.len(),
        }
    }
}

impl Reading {
    pub fn of_text(text: Vec<u8>) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }

    /// Begins a list of the named files of all processes. Processes and files that disappear meanwhile are
    /// left out.
    pub(super) fn of_processes(tree: &Tree, asker: &Credentials, names: &str) -> Result<Self> {
        let ids = tree.processes().into_iter().map(|(id, _)| id);
        Self::of_list(tree, asker, names, Rest::Processes(ids.collect()))
    }

    /// Begins a list of the named files of the groups that the client could find on the mount, each after the
    /// one above it.
    pub(super) fn of_groups(tree: &Tree, asker: &Credentials, names: &str) -> Result<Self> {
        let groups = tree.groups().into_iter().map(|id| (tree.path(Some(id)), id));
        let mut groups: Vec<_> = groups.collect();
        groups.sort_unstable();
        Self::of_list(tree, asker, names, Rest::Groups(groups.into()))
    }

    /// Begins a list of ended processes: all, or those with this pid.
    pub(in super::super) fn of_ended(lines: Lines, pid: Option<u32>) -> Self {
        Self {
            rest: Rest::Ended(lines, pid),
            ..Self::default()
        }
    }

    fn of_list(tree: &Tree, asker: &Credentials, names: &str, rest: Rest) -> Result<Self> {
        if !asker.lets(tree, Directory::ROOT, 0o1)? {
            return Err(Error::Closed);
        }
        Ok(Self {
            rest,
            files: files(names),
            ..Self::default()
        })
    }

    /// Returns the bytes of memory that it takes, about.
    pub fn size(&self) -> usize {
        let rest = match self.rest {
            Rest::Ended(..) => 0,
            _ => self.rest.len() * size_of::<(String, GroupId)>(),
        };
        self.text.len() + size_of_val(self.files.as_slice()) + rest
    }

    /// Returns the answer with the part from `offset` on, where the last part ended, and what is read from
    /// then on.
    pub(in super::super) fn part(mut self, tree: &Tree, asker: &Credentials, offset: u32) -> (Vec<u8>, Self) {
        let at = (offset as usize).checked_sub(self.begin);
        let Some(mut at) = at.filter(|at| *at <= self.text.len()) else {
            return (Answer::part(&[], 0).to_bytes(), Self::default());
        };
        if self.rest.len() != 0 {
            self.text.drain(..at);
            (self.begin, at) = (self.begin + at, 0);
            self.render(tree, asker);
        }
        let unread = self.text.get(at..).unwrap_or_default();
        let part = unread.get(..MAX_PART).unwrap_or(unread);
        let is_last = part.len() == unread.len() && self.rest.len() == 0;
        // The length of a list is not known before its end.
        let more = usize::from(self.rest.len() != 0);
        let total = self.begin + self.text.len() + more;
        let answer = Answer {
            status: 0,
            total: u32::try_from(total).unwrap_or(u32::MAX),
            part,
        };
        (answer.to_bytes(), if is_last { Self::default() } else { self })
    }

    /// Renders the next part of a list: at least one line, if there is one.
    fn render(&mut self, tree: &Tree, asker: &Credentials) {
        let begun = Instant::now();
        let mut paths = BTreeMap::new();
        while self.text.len() < MAX_PART && (self.text.is_empty() || begun.elapsed() < PART_TIME) {
            match &mut self.rest {
                Rest::Processes(ids) => match ids.pop_front() {
                    Some(id) => list_process(&mut self.text, (tree, asker), &mut paths, &self.files, id),
                    None => return,
                },
                Rest::Groups(groups) => match groups.pop_front() {
                    Some((path, id)) => list_group(&mut self.text, (tree, asker), &self.files, &path, id),
                    None => return,
                },
                Rest::Ended(lines, _) if lines.len() == 0 => return,
                Rest::Ended(lines, pid) => {
                    list_ended(&mut self.text, (tree, asker), lines, *pid);
                    if self.text.is_empty() && begun.elapsed() >= PART_TIME {
                        // An empty part would end the list.
                        self.text.push(b'\n');
                    }
                }
                Rest::Nothing => return,
            }
        }
    }
}

/// Paths of groups that a client may see; `None` for others.
type Paths = BTreeMap<Option<GroupId>, Option<String>>;

fn list_process(
    out: &mut Vec<u8>,
    (tree, asker): (&Tree, &Credentials),
    paths: &mut Paths,
    files: &[&'static ControlFile],
    id: ProcessId,
) {
    let Some(identity) = tree.identity(id) else { return };
    let (pid, whole) = (identity.pid.to_string(), Directory::process(id));
    let group = tree.group_of(id).flatten();
    let group = paths
        .entry(group)
        .or_insert_with(|| is_open(tree, asker, group).then(|| tree.path(group)))
        .as_deref();
    let mut push = |directory, device: Option<&str>| {
        let line = Line {
            pid: &pid,
            device,
            uid: identity.uid,
            comm: &identity.comm,
            group,
            files: show((tree, asker), files, directory),
        };
        push_line(out, &line);
    };
    push(whole, None);
    for (device, directory) in tree.on_devices(whole) {
        push(directory, Some(&device));
    }
}

/// Adds the next ended processes as JSON lines. What is not the client's is shown without command line and
/// group.
fn list_ended(out: &mut Vec<u8>, (tree, asker): (&Tree, &Credentials), lines: &mut Lines, pid: Option<u32>) {
    let key = pid.map(|pid| format!("\"pid\":{pid},"));
    let has = |line: &[u8], key: &str| line.windows(key.len()).any(|part| part == key.as_bytes());
    for mut one in lines.next(|line| key.as_ref().is_none_or(|key| has(line, key))) {
        let is_own = !asker.is_contained && one.identity.uid == asker.uid;
        if !is_own && !asker.is_root(tree) {
            one.withhold();
        }
        push_line(out, &one);
    }
}

fn list_group(
    out: &mut Vec<u8>,
    (tree, asker): (&Tree, &Credentials),
    files: &[&'static ControlFile],
    path: &str,
    id: GroupId,
) {
    let whole = Directory::group(id);
    let Ok(owner) = tree.owner(whole) else { return };
    if !is_open(tree, asker, Some(id)) {
        return;
    }
    let mut push = |directory, device: Option<&str>| {
        let line = GroupLine {
            group: path,
            device,
            uid: owner.uid,
            files: show((tree, asker), files, directory),
        };
        push_line(out, &line);
    };
    push(whole, None);
    for (device, directory) in tree.on_devices(whole) {
        push(directory, Some(&device));
    }
}

/// Returns the control files of these names, one per line, each once.
fn files(names: &str) -> Vec<&'static ControlFile> {
    let names: BTreeSet<&str> = names.lines().take(MAX_FILES).collect();
    names.into_iter().filter_map(file::named).collect()
}

/// Returns the contents of those files that the directory has and the client may read.
fn show((tree, asker): (&Tree, &Credentials), files: &[&'static ControlFile], directory: Directory) -> Files {
    let may_search = |directory: Directory| asker.lets(tree, directory, 0o1).unwrap_or(false);
    if ![directory.whole(), directory].into_iter().all(may_search) {
        return Files(Vec::new());
    }
    let shown = |file: &'static ControlFile| {
        let may_read = asker.lets(tree, file.item(directory), 0o4).unwrap_or(false);
        let text = may_read.then(|| file.show(tree, directory).ok()).flatten()?;
        Some((file.name, text))
    };
    let here = file::those_in(tree, directory, files.iter().copied());
    Files(here.into_iter().flatten().filter_map(shown).collect())
}

fn push_line(out: &mut Vec<u8>, line: &impl Serialize) {
    let begin = out.len();
    match serde_json::to_writer(&mut *out, line) {
        Ok(()) => out.push(b'\n'),
        Err(_) => out.truncate(begin),
    }
}
