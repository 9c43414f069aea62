//! Evaluates the rules for processes that register. The facts come from /proc and from the users' database,
//! which may be remote, so they are looked up on a separate thread while the loop continues.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use gcgroup_abi::message::{GroupName, Hello};
use nix::errno::Errno;
use parking_lot::RwLock;

use crate::containers::Containers;
use crate::facts::{self, user_name};
use gcgroupfs_model::rules::{Facts, Group, Rules, Verdict};
use gcgroupfs_model::text::Comm;
use gcgroupfs_model::user_counts::UserCounts;
use gcgroupfs_sys::UsageMap;
use gcgroupfs_sys::process::Peer;

/// User names cached until the rules are reloaded.
const MAX_NAMES: usize = 4096;

/// Maximum number of processes of one user, and of all, that wait for their verdict. Questions for devices
/// are counted apart, with the same limits: they cannot crowd out registrations.
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
    /// The group that it asks for, as rules examine it.
    pub wish: Option<String>,
}

/// A process that is about to execute a command with a group of its own.
#[derive(Debug)]
pub(super) struct JobRequest {
    /// Number of its connection.
    pub number: u64,
    pub peer: Peer,
    /// The group that it asks for.
    pub group: Option<String>,
    /// Name of the job.
    pub name: Option<String>,
    /// The program, by its own word: where the group is made depends on it. What the job executes is
    /// examined when it registers, and begins in the job's group unless a rule gives it another. So rules
    /// by program do not keep users out (gcgroupfs(5)): launchers start programs that are in no rule.
    pub program: PathBuf,
}

/// A process that asks which devices it may use.
#[derive(Debug)]
pub(super) struct DevicesRequest {
    /// Number of its connection.
    pub number: u64,
    pub peer: Peer,
    /// The group that it asks for.
    pub group: GroupName,
    /// That group, as rules examine it.
    pub wish: Option<String>,
    /// Its `CUDA_VISIBLE_DEVICES`.
    pub visible: Option<String>,
}

/// A process for which the rules are evaluated.
#[derive(Debug)]
enum Question {
    Registrant(Box<Registrant>),
    Devices(Box<DevicesRequest>),
    Job(Box<JobRequest>),
}

/// Verdict of the rules on a process.
#[derive(Debug)]
pub(super) enum RuleAnswer {
    Registrant(Box<Registrant>, nix::Result<Verdict>),
    Devices(Box<DevicesRequest>, nix::Result<Verdict>),
    /// With the group of its user's jobs.
    Job(Box<JobRequest>, nix::Result<(Verdict, Group)>),
}

impl Question {
    fn uid(&self) -> u32 {
        match self {
            Self::Registrant(registrant) => registrant.peer.uid,
            Self::Devices(request) => request.peer.uid,
            Self::Job(request) => request.peer.uid,
        }
    }

    fn is_for_devices(&self) -> bool {
        matches!(self, Self::Devices(_))
    }

    fn judge(self, rules: &Arc<Rules>, names: &mut Names) -> RuleAnswer {
        match self {
            Self::Registrant(registrant) => {
                let verdict = judge(rules, &registrant.peer, registrant.wish.as_deref(), names);
                RuleAnswer::Registrant(registrant, verdict)
            }
            Self::Devices(request) => {
                let verdict = judge(rules, &request.peer, request.wish.as_deref(), names);
                RuleAnswer::Devices(request, verdict)
            }
            Self::Job(request) => {
                let judged = judge_job(rules, &request, names);
                RuleAnswer::Job(request, judged)
            }
        }
    }
}

/// The thread that evaluates the rules, and the channels to and from it.
#[derive(Debug)]
pub(super) struct RuleQueries {
    rules: CurrentRules,
    questions: Sender<Question>,
    answers: Receiver<RuleAnswer>,
    waiting: Waiting,
}

/// Processes that wait for their verdict.
#[derive(Debug, Default)]
struct Waiting {
    registrations: UserCounts,
    devices: UserCounts,
}

impl Waiting {
    fn of_kind(&mut self, is_for_devices: bool) -> &mut UserCounts {
        match is_for_devices {
            true => &mut self.devices,
            false => &mut self.registrations,
        }
    }
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
            for question in asked {
                let question: Question = question;
                if answer.send(question.judge(&current.get(), &mut names)).is_err() {
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
            waiting: Waiting::default(),
        })
    }

    pub(super) fn rules(&self) -> CurrentRules {
        self.rules.clone()
    }

    /// Returns whether there are any rules.
    pub(super) fn are_needed(&self) -> bool {
        !self.rules.get().is_empty()
    }

    /// Returns whether any rule forbids CUDA to processes that are not governed.
    pub(super) fn may_require(&self) -> bool {
        self.rules.get().any_requires()
    }

    /// Returns whether any rule makes a group with a list of devices.
    pub(super) fn may_limit_devices(&self) -> bool {
        self.rules.get().any_limits_devices()
    }

    /// Queues a process for its verdict.
    ///
    /// # Errors
    /// `EAGAIN` if the thread has ended, or if too many wait, including those whose connection has ended
    /// meanwhile.
    pub(super) fn ask(&mut self, registrant: Registrant) -> nix::Result<()> {
        self.put(Question::Registrant(Box::new(registrant)))
    }

    /// Queues the start of a job for its verdict, also if there are no rules: the user's name is needed.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(super) fn ask_for_job(&mut self, request: JobRequest) -> nix::Result<()> {
        self.put(Question::Job(Box::new(request)))
    }

    /// Queues a question for devices.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(super) fn ask_for_devices(&mut self, request: DevicesRequest) -> nix::Result<()> {
        self.put(Question::Devices(Box::new(request)))
    }

    fn put(&mut self, question: Question) -> nix::Result<()> {
        let waiting = self.waiting.of_kind(question.is_for_devices());
        if !add_waiting(waiting, question.uid()) {
            return Err(Errno::EAGAIN);
        }
        self.questions.send(question).map_err(|_| Errno::EAGAIN)
    }

    /// Returns the next answer, if there is one.
    pub(super) fn answer(&mut self) -> Option<RuleAnswer> {
        let answer = self.answers.try_recv().ok()?;
        let (is_for_devices, uid) = match &answer {
            RuleAnswer::Registrant(registrant, _) => (false, registrant.peer.uid),
            RuleAnswer::Devices(request, _) => (true, request.peer.uid),
            RuleAnswer::Job(request, _) => (false, request.peer.uid),
        };
        self.waiting.of_kind(is_for_devices).remove(uid);
        Some(answer)
    }
}

/// Evaluates the rules for a process.
///
/// # Errors
/// The process has ended, reading its /proc files blocks, or the name of its container is not told yet.
fn judge(rules: &Arc<Rules>, peer: &Peer, wish: Option<&str>, names: &mut Names) -> nix::Result<Verdict> {
    let mut facts = facts::of_peer(peer, wish)?;
    if rules.want_user() {
        facts.user = names.get(rules, facts.uid);
    }
    names.add_container(rules, &mut facts)?;
    Ok(rules.verdict(&facts))
}

/// Evaluates the rules for a job's program, and names the group of its user's jobs.
///
/// # Errors
/// As [`judge`].
fn judge_job(rules: &Arc<Rules>, request: &JobRequest, names: &mut Names) -> nix::Result<(Verdict, Group)> {
    let mut facts = facts::of_peer(&request.peer, request.group.as_deref())?;
    facts.user = names.get(rules, facts.uid);
    let name = request.program.file_name();
    facts.comm = name.map_or_else(Comm::default, |name| comm_of(&name.to_string_lossy()));
    facts.exe = Some(request.program.clone());
    names.add_container(rules, &mut facts)?;
    Ok((rules.verdict(&facts), Group::of_user(&facts)))
}

/// Returns the short name that the kernel gives to a program.
fn comm_of(name: &str) -> Comm {
    const LONGEST: usize = 15;
    let end = (0..=LONGEST.min(name.len()))
        .rev()
        .find(|end| name.is_char_boundary(*end));
    name.get(..end.unwrap_or(0)).unwrap_or_default().into()
}

/// Names of users and containers, as they were when first looked up.
#[derive(Debug, Default)]
struct Names {
    rules: Arc<Rules>,
    names: HashMap<u32, Option<String>>,
    containers: Containers,
}

impl Names {
    fn get(&mut self, rules: &Arc<Rules>, uid: u32) -> Option<String> {
        if !Arc::ptr_eq(&self.rules, rules) || self.names.len() >= MAX_NAMES {
            self.rules = rules.clone();
            self.names.clear();
        }
        self.names.entry(uid).or_insert_with(|| user_name(uid)).clone()
    }

    /// Adds the name of the process's container, if a rule needs it.
    ///
    /// # Errors
    /// `EAGAIN`: it is not told yet.
    fn add_container(&mut self, rules: &Rules, facts: &mut Facts) -> nix::Result<()> {
        if rules.want_container() {
            facts.container = self.containers.name(&facts.cgroups)?;
        }
        Ok(())
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

    #[test]
    fn questions_for_devices_do_not_crowd_out_registrations() {
        let mut waiting = Waiting::default();
        let devices = waiting.of_kind(true);
        while add_waiting(devices, 1) {}
        assert_eq!(devices.of(1), MAX_WAITING_PER_UID);
        assert!(add_waiting(waiting.of_kind(false), 1));
        waiting.of_kind(true).remove(1);
        assert!(add_waiting(waiting.of_kind(true), 1) && waiting.of_kind(false).of(1) == 1);
    }
}
