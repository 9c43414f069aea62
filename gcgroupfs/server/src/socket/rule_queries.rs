//! Evaluates the rules for processes that register. The facts come from /proc and from the users' database,
//! which may be remote, so they are looked up on a separate thread while the loop continues.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use gcgroup_abi::message::Hello;
use nix::errno::Errno;
use parking_lot::RwLock;

use crate::facts::{self, user_name};
use gcgroupfs_model::rules::{Rules, Verdict};
use gcgroupfs_model::user_counts::UserCounts;
use gcgroupfs_sys::UsageMap;
use gcgroupfs_sys::process::Peer;

/// User names cached until the rules are reloaded.
const MAX_NAMES: usize = 4096;

/// Maximum number of processes of one user, and of all, that wait for their verdict.
const MAX_WAITING_PER_UID: usize = 256;
const MAX_WAITING: usize = 4096;

/// The rules in force.
#[derive(Debug, Clone, Default)]
pub struct CurrentRules(Arc<RwLock<Arc<Rules>>>);

impl CurrentRules {
    /// Replaces the rules, for processes that register from now on.
    pub fn set(&self, rules: Rules) {
        *self.0.write() = Arc::new(rules);
    }

    fn get(&self) -> Arc<Rules> {
        self.0.read().clone()
    }
}

/// A process that registers, with all that is needed to do so.
#[derive(Debug)]
pub(super) struct Registrant {
    /// Number of its connection.
    pub number: u64,
    pub peer: Peer,
    pub hello: Hello,
    pub usage: UsageMap,
}

/// The thread that evaluates the rules, and the channels to and from it.
#[derive(Debug)]
pub(super) struct RuleQueries {
    rules: CurrentRules,
    questions: Sender<Registrant>,
    answers: Receiver<(Registrant, nix::Result<Verdict>)>,
    /// Processes that wait for their verdict.
    waiting: UserCounts,
}

/// Counts one more process of the user that waits; returns false if there is no room.
fn add_waiting(waiting: &mut UserCounts, uid: u32) -> bool {
    let has_room = waiting.of(uid) < MAX_WAITING_PER_UID && waiting.total() < MAX_WAITING;
    if has_room {
        waiting.add(uid);
    }
    has_room
}

impl RuleQueries {
    /// Starts the thread, which writes to `waker` when there is an answer.
    ///
    /// # Errors
    /// Out of threads.
    pub(super) fn start(waker: UnixStream) -> io::Result<Self> {
        let rules = CurrentRules::default();
        let (questions, asked) = channel();
        let (answer, answers) = channel();
        let current = rules.clone();
        thread::Builder::new().name("rules".to_owned()).spawn(move || {
            let mut names = Names::default();
            for registrant in asked {
                let verdict = judge(&current.get(), &registrant, &mut names);
                if answer.send((registrant, verdict)).is_err() {
                    return;
                }
                // If it is full, the loop has been woken already.
                let _ = (&waker).write(&[0]);
            }
        })?;
        Ok(Self {
            rules,
            questions,
            answers,
            waiting: UserCounts::default(),
        })
    }

    pub(super) fn rules(&self) -> CurrentRules {
        self.rules.clone()
    }

    /// Returns whether there are any rules.
    pub(super) fn are_needed(&self) -> bool {
        !self.rules.get().is_empty()
    }

    /// Queues a process for its verdict.
    ///
    /// # Errors
    /// `EAGAIN` if the thread has ended, or if too many wait, including those whose connection has ended
    /// meanwhile.
    pub(super) fn ask(&mut self, registrant: Registrant) -> nix::Result<()> {
        if !add_waiting(&mut self.waiting, registrant.peer.uid) {
            return Err(Errno::EAGAIN);
        }
        self.questions.send(registrant).map_err(|_| Errno::EAGAIN)
    }

    /// Returns the next answer, if there is one.
    pub(super) fn answer(&mut self) -> Option<(Registrant, nix::Result<Verdict>)> {
        let (registrant, verdict) = self.answers.try_recv().ok()?;
        self.waiting.remove(registrant.peer.uid);
        Some((registrant, verdict))
    }
}

/// Evaluates the rules for a process.
///
/// # Errors
/// The process has ended, or reading its /proc files blocks.
fn judge(rules: &Arc<Rules>, registrant: &Registrant, names: &mut Names) -> nix::Result<Verdict> {
    let mut facts = facts::of_peer(&registrant.peer, registrant.hello.group.as_str())?;
    if rules.want_user() {
        facts.user = names.get(rules, facts.uid);
    }
    Ok(rules.verdict(&facts))
}

/// User names, as they were when first looked up.
#[derive(Debug, Default)]
struct Names {
    rules: Arc<Rules>,
    names: HashMap<u32, Option<String>>,
}

impl Names {
    fn get(&mut self, rules: &Arc<Rules>, uid: u32) -> Option<String> {
        if !Arc::ptr_eq(&self.rules, rules) || self.names.len() >= MAX_NAMES {
            *self = Self {
                rules: rules.clone(),
                names: HashMap::new(),
            };
        }
        self.names.entry(uid).or_insert_with(|| user_name(uid)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_processes_are_bounded_per_user_and_in_all() {
        let mut waiting = UserCounts::default();
        let mut fill = |uid| {
            (0..MAX_WAITING)
                .filter(|_| add_waiting(&mut waiting, uid))
                .count()
        };
        assert_eq!(fill(1), MAX_WAITING_PER_UID);
        let others: usize = (2..100).map(&mut fill).sum();
        assert_eq!(others + MAX_WAITING_PER_UID, MAX_WAITING);
        waiting.remove(1);
        assert!(add_waiting(&mut waiting, 200) && !add_waiting(&mut waiting, 201));
        (0..MAX_WAITING_PER_UID - 1).for_each(|_| waiting.remove(1));
        assert_eq!(waiting.of(1), 0);
    }
}
