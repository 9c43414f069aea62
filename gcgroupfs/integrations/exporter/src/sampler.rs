//! Reads the daemon's state and events for all requests, at most once a second, and keeps what the page shows
//! of the past.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use gcgroup_client::Client;
use gcgroup_client::node::{Activities, Reader};
use serde_json::Value;

use crate::history::{History, STEP};
use crate::snapshot::{Caps, Snapshot};
use crate::waits::{Wait, waits};

/// Age up to which a snapshot serves further requests.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

/// Number of events that are kept.
const MAX_EVENTS: usize = 200;

/// State of the daemon, now and before.
#[derive(Debug, Default)]
pub(crate) struct State {
    reader: Reader,
    activities: Activities,
    read_at: Option<Instant>,
    /// `None`: the daemon did not answer the last time.
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    /// Why it did not.
    pub(crate) error: Option<String>,
    pub(crate) waits: Vec<Wait>,
    pub(crate) history: History,
    /// The daemon's last events, the latest first.
    pub(crate) events: VecDeque<Value>,
}

/// Reader of a daemon.
#[derive(Debug)]
pub(crate) struct Sampler {
    socket: PathBuf,
    caps: Caps,
    pods: Option<PathBuf>,
    state: Mutex<State>,
}

impl Sampler {
    /// Returns a reader that names pods by a file, if there is one.
    pub(crate) fn new(socket: &Path, caps: Caps, pods: Option<&Path>) -> Self {
        Self {
            socket: socket.to_owned(),
            caps,
            pods: pods.map(Path::to_owned),
            state: Mutex::default(),
        }
    }

    /// Calls `show` with a state that is at most a second old. May wait for the daemon, 20 seconds at most.
    pub(crate) fn with<T>(&self, show: impl FnOnce(&State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.read_at.is_none_or(|at| at.elapsed() >= FRESH) {
            let read = Snapshot::read(&self.socket, self.caps, state.readers());
            let read = read.and_then(|snapshot| {
                state.read_events()?;
                Ok(snapshot.with_names(self.pods.as_deref()))
            });
            state.store(read);
        }
        show(&state)
    }

    /// Fills the history for as long as the process lives.
    pub(crate) fn watch(self: &Arc<Self>) {
        let sampler = Arc::clone(self);
        thread::spawn(move || {
            loop {
                sampler.with(|_| ());
                thread::sleep(STEP);
            }
        });
    }

    /// Freezes or thaws a process or group.
    ///
    /// # Errors
    /// The daemon refuses it, or does not answer.
    pub(crate) fn freeze(&self, directory: &str, is_frozen: bool) -> Result<(), String> {
        let path = format!("{directory}/compute.freeze");
        let mut client = Client::connect(&self.socket).map_err(|error| error.to_string())?;
        let set = client.set(&path, if is_frozen { "1" } else { "0" });
        let set = set.map_err(|error| error.to_string())?;
        // What was read before is out of date.
        self.state.lock().unwrap_or_else(PoisonError::into_inner).read_at = None;
        set.map_err(|refusal| refusal.to_string())
    }
}

impl State {
    fn readers(&mut self) -> (&mut Reader, &mut Activities) {
        (&mut self.reader, &mut self.activities)
    }

    /// Reads the events since the last one that is known.
    fn read_events(&mut self) -> anyhow::Result<()> {
        let last = self.events.front().and_then(|event| event["number"].as_u64());
        let text = self.reader.client()?.events(last.unwrap_or_default())?;
        // A user who may see no events sees none.
        for line in text.unwrap_or_default().lines() {
            let event = serde_json::from_str(line).context("the daemon's events are invalid")?;
            self.events.push_front(event);
        }
        self.events.truncate(MAX_EVENTS);
        Ok(())
    }

    fn store(&mut self, read: anyhow::Result<Snapshot>) {
        self.read_at = Some(Instant::now());
        match read {
            Ok(next) => {
                if let Some(last) = &self.snapshot {
                    self.waits = waits(last, &next);
                }
                self.history.add(&next);
                (self.snapshot, self.error) = (Some(Arc::new(next)), None);
            }
            Err(error) => {
                (self.snapshot, self.error) = (None, Some(format!("{error:#}")));
                self.waits.clear();
            }
        }
    }
}
