//! Search for the link of a container, on a thread: /var/log may be on a filesystem that hangs. One search
//! runs at a time, so that such a filesystem holds one thread.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Fewest digits of the id in a link's name, which is cut to 255 bytes.
const MIN_DIGITS: usize = 12;

/// Stack size of a searching thread, bytes.
const STACK: usize = 128 << 10;

/// A container, by what its cgroup tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Container {
    pub id: String,
    /// UID of its pod.
    pub pod: String,
}

/// Function that looks for the link of a container in a directory, and returns the container's name.
pub(super) type Look = fn(&Path, &Container) -> Option<String>;

/// The search that runs, if there is one.
#[derive(Debug)]
pub(super) struct Search {
    links: PathBuf,
    look: Look,
    running: Option<(Container, Receiver<Option<String>>)>,
}

impl Search {
    /// Returns a search in the directory of links, none of which has begun.
    pub(super) fn new(links: &Path, look: Look) -> Self {
        Self {
            links: links.to_owned(),
            look,
            running: None,
        }
    }

    /// Starts to look for a container, unless a search is running. Returns whether it has started one.
    pub(super) fn start(&mut self, container: Container) -> bool {
        if self.running.is_some() {
            return false;
        }
        let (answer, answered) = channel();
        let (links, look, wanted) = (self.links.clone(), self.look, container.clone());
        let thread = thread::Builder::new()
            .name("containers".to_owned())
            .stack_size(STACK);
        // Without a thread nothing is found, and the caller asks again.
        let spawned = thread.spawn(move || answer.send(look(&links, &wanted)));
        self.running = spawned.is_ok().then_some((container, answered));
        self.running.is_some()
    }

    /// Waits at most `patience` for the search that is running to end. Returns the id and the name of its
    /// container; `None` if no search runs, it has not ended, or it has found nothing.
    pub(super) fn wait(&mut self, patience: Duration) -> Option<(String, String)> {
        let (container, answered) = self.running.take()?;
        match answered.recv_timeout(patience) {
            Ok(name) => Some((container.id, name?)),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                self.running = Some((container, answered));
                None
            }
        }
    }
}

/// Looks for the link of a container. The pod is compared as well: users choose the names of pods, which
/// begin those of the links.
pub(super) fn look(links: &Path, container: &Container) -> Option<String> {
    let entries = fs::read_dir(links).ok()?;
    entries.flatten().find_map(|entry| {
        let name = entry.file_name();
        let (_, digits) = name.to_str()?.strip_suffix(".log")?.rsplit_once('-')?;
        if digits.len() < MIN_DIGITS || !container.id.starts_with(digits) {
            return None;
        }
        let log = fs::read_link(entry.path()).ok()?;
        let of_container = log.parent()?;
        let of_pod = of_container.parent()?.file_name()?.to_str()?;
        let (_, of_uid) = of_pod.rsplit_once('_')?;
        (of_uid == container.pod).then_some(of_container.file_name()?.to_str()?.to_owned())
    })
}
