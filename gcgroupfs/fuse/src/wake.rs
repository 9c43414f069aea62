//! Wakes pollers of events files, on a separate thread, so that the cause of an event does not wait for the
//! kernel's notification.
#![doc = include_str!("notification.md")]

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fuser::PollNotifier;

use super::nodes::Nodes;
use gcgroupfs_model::tree::{Directory, Listener, Notice};

/// Minimum time between two wake-ups of one poller, which then sees all changes at once. A process that
/// causes events in a loop must not keep its watchers busy. (Changes not reported yet do not end poll(2)
/// either, so polling again at once gains nothing.)
const PAUSE: Duration = Duration::from_millis(10);

/// Passes events to the pollers: of an entity, or `None` if pressure files are read.
#[derive(Debug)]
pub(super) struct Waker(Sender<Option<u64>>);

impl Waker {
    /// Starts the waking thread.
    pub(super) fn start(nodes: Arc<Nodes>) -> io::Result<Self> {
        let (sender, receiver) = channel();
        thread::Builder::new()
            .name("fuse-wake".to_owned())
            .spawn(move || {
                let mut turns = Turns::default();
                // When averages of pressure files are due.
                let mut average_at: Option<Instant> = None;
                loop {
                    let now = Instant::now();
                    let until_average = average_at.map(|at| at.saturating_duration_since(now));
                    let pauses = [turns.until_next(now), until_average];
                    let pause = pauses.into_iter().flatten().min();
                    let first = match pause {
                        None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                        Some(pause) => receiver.recv_timeout(pause),
                    };
                    if first == Err(RecvTimeoutError::Disconnected) {
                        return;
                    }
                    let news: Vec<_> = first.into_iter().chain(receiver.try_iter()).collect();
                    let now = Instant::now();
                    let is_read = news.contains(&None);
                    let due = turns.take(news.into_iter().flatten(), now);
                    if !due.is_empty() {
                        wake(&nodes, &due);
                    }
                    if average_at.map_or(is_read, |at| at <= now) {
                        average_at = nodes.average_pressure().map(|pause| now + pause);
                    }
                }
            })?;
        Ok(Self(sender))
    }
}

/// Entities whose pollers were woken within the last [`PAUSE`], and whether they have changed since.
#[derive(Debug, Default)]
struct Turns {
    /// In the order in which their pauses end.
    resting: VecDeque<(Instant, u64)>,
    /// Whether each has changed since.
    has_changed: HashMap<u64, bool>,
}

impl Turns {
    /// Returns the time until the next pause ends.
    fn until_next(&self, now: Instant) -> Option<Duration> {
        let (until, _) = self.resting.front()?;
        Some(until.saturating_duration_since(now))
    }

    /// Returns the entities whose pollers must be woken now: changed ones that are not pausing, and those
    /// that changed during a pause that is over.
    fn take(&mut self, changed: impl Iterator<Item = u64>, now: Instant) -> BTreeSet<u64> {
        let mut due = BTreeSet::new();
        while let Some((_, entity)) = self.resting.pop_front_if(|(until, _)| *until <= now) {
            if self.has_changed.remove(&entity) == Some(true) {
                due.insert(entity);
            }
        }
        for entity in changed {
            match self.has_changed.get_mut(&entity) {
                Some(has_changed) => *has_changed = true,
                None => {
                    due.insert(entity);
                }
            }
        }
        for entity in &due {
            self.resting.push_back((now + PAUSE, *entity));
            self.has_changed.insert(*entity, false);
        }
        due
    }
}

/// Wakes the pollers of these entities whose files have changed.
fn wake(nodes: &Nodes, entities: &BTreeSet<u64>) {
    let inos = nodes.handles.of(entities);
    let counts = inos.into_iter().map(|ino| (ino, nodes.nr_changes(ino))).collect();
    notify(nodes.handles.announce(&counts));
}

fn notify(pollers: Vec<PollNotifier>) {
    for notifier in pollers {
        if let Err(error) = notifier.notify() {
            tracing::debug!(%error, "cannot wake a poller");
        }
    }
}

impl Listener for Waker {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Events(id) | Notice::Left { id, .. } => {
                // The thread ends with the daemon.
                let _ = self.0.send(Some(id.0));
            }
            Notice::GroupEvents(id) | Notice::Removed(id) => {
                let _ = self.0.send(Some(id.0));
            }
            Notice::RootEvents => {
                let _ = self.0.send(Some(Directory::ROOT.entity));
            }
            Notice::PressureWatched => {
                let _ = self.0.send(None);
            }
            Notice::Joined { .. }
            | Notice::GroupChanged(_)
            | Notice::SettingsChanged(_)
            | Notice::RootChanged
            | Notice::Departed { .. }
            | Notice::JobEnded { .. }
            | Notice::Ring(_)
            | Notice::Answered { .. }
            | Notice::Rung(_)
            | Notice::Watched(_)
            | Notice::AuditAsked
            | Notice::DevicesAsked
            | Notice::ContextMade
            | Notice::EndsAsked
            | Notice::KillAsked(..)
            | Notice::SuspendAsked => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poller_is_woken_at_once_then_once_per_pause() {
        let start = Instant::now();
        let at = |tenths: u32| start + PAUSE * tenths / 10;
        let mut turns = Turns::default();
        let mut take = |tenths, changed: &[u64]| {
            let due = turns.take(changed.iter().copied(), at(tenths));
            let next = turns.until_next(at(tenths));
            (due.into_iter().collect::<Vec<_>>(), next)
        };
        assert_eq!(take(0, &[]), (vec![], None));
        assert_eq!(take(0, &[5, 5]), (vec![5], Some(PAUSE)));
        assert_eq!(
            take(2, &[5, 6]),
            (vec![6], Some(PAUSE * 8 / 10)),
            "another does not wait"
        );
        assert_eq!(take(9, &[5, 5]), (vec![], Some(PAUSE / 10)));
        assert_eq!(
            take(10, &[]),
            (vec![5], Some(PAUSE * 2 / 10)),
            "its pause is over"
        );
        assert_eq!(
            take(12, &[]),
            (vec![], Some(PAUSE * 8 / 10)),
            "nothing has happened to 6"
        );
        assert_eq!(take(20, &[]), (vec![], None));
        assert_eq!(
            take(21, &[6]),
            (vec![6], Some(PAUSE)),
            "nobody is remembered for ever"
        );
    }

    #[test]
    fn change_during_a_wake_up_waits_for_the_next_turn() {
        let start = Instant::now();
        let mut turns = Turns::default();
        assert_eq!(turns.take([1, 2, 1].into_iter(), start), [1, 2].into());
        let late = start + PAUSE;
        assert_eq!(turns.take([1].into_iter(), late), [1].into(), "not twice");
        assert_eq!(turns.take([1].into_iter(), late), [].into());
        assert_eq!(turns.take([].into_iter(), late + PAUSE), [1].into());
    }
}
