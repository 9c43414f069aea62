//! Reads the daemon's state for all requests, at most once a second, and keeps what the page shows of the
//! past.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gcgroup_client::Client;
use gcgroup_client::node::{Activities, Reader};
use serde::Serialize;

use crate::changes::{Event, Wait, changes, waits};
use crate::snapshot::{Caps, Snapshot, now};

/// Age up to which a snapshot serves further requests.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

/// Interval of the history.
const STEP: Duration = Duration::from_secs(5);

/// Number of points of the history: half an hour.
const MAX_POINTS: usize = 360;

/// Number of events that are kept.
const MAX_EVENTS: usize = 200;

/// GPUs at one moment.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Point {
    /// Seconds since 1970.
    pub(crate) time: u64,
    pub(crate) gpus: Vec<GpuPoint>,
}

/// GPU at one moment; `None`: unknown.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct GpuPoint {
    pub(crate) uuid: String,
    pub(crate) used: Option<u64>,
    pub(crate) utilization: Option<u64>,
}

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
    pub(crate) history: VecDeque<Point>,
    /// The latest first.
    pub(crate) events: VecDeque<Event>,
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
            let read = read.map(|snapshot| snapshot.with_names(self.pods.as_deref()));
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

    fn store(&mut self, read: anyhow::Result<Snapshot>) {
        self.read_at = Some(Instant::now());
        match read {
            Ok(next) => {
                if let Some(last) = &self.snapshot {
                    self.waits = waits(last, &next);
                    for event in changes(last, &next) {
                        self.note(event);
                    }
                } else if self.error.is_some() {
                    self.note(Event::now("the daemon answers again"));
                }
                self.add_point(&next);
                (self.snapshot, self.error) = (Some(Arc::new(next)), None);
            }
            Err(error) => {
                if self.error.is_none() {
                    self.note(Event::now("the daemon does not answer"));
                }
                (self.snapshot, self.error) = (None, Some(format!("{error:#}")));
                self.waits.clear();
            }
        }
    }

    fn note(&mut self, event: Event) {
        self.events.push_front(event);
        self.events.truncate(MAX_EVENTS);
    }

    fn add_point(&mut self, snapshot: &Snapshot) {
        let time = now().as_secs();
        let is_due = self
            .history
            .back()
            .is_none_or(|last| time.abs_diff(last.time) >= STEP.as_secs());
        if !is_due {
            return;
        }
        let gpus = snapshot.gpus.iter().map(|gpu| GpuPoint {
            uuid: gpu.uuid.clone(),
            used: gpu.memory.used,
            utilization: gpu.utilization,
        });
        let gpus = gpus.collect();
        self.history.push_back(Point { time, gpus });
        if self.history.len() > MAX_POINTS {
            self.history.pop_front();
        }
    }
}
