//! Asking the rules about those who register. What they ask about comes from /proc and from the users' database, which
//! may be far away; so it is looked up on a thread of its own, and the loop goes on.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use gcgroup_abi::message::Hello;
use nix::errno::Errno;
use parking_lot::RwLock;

use crate::process::Peer;
use crate::rules::{Facts, Rules, Verdict, user_name};
use crate::sys::UsageMap;

/// Names of users that are remembered until the rules are read again.
const MAX_NAMES: usize = 4096;

/// The rules as they are now.
#[derive(Debug, Clone, Default)]
pub struct Current(Arc<RwLock<Arc<Rules>>>);

impl Current {
    /// They hold for whoever registers from now on.
    pub fn set(&self, rules: Rules) {
        *self.0.write() = Arc::new(rules);
    }

    fn get(&self) -> Arc<Rules> {
        self.0.read().clone()
    }
}

/// A process that wants to register, and has said all that it has to say.
#[derive(Debug)]
pub struct Applicant {
    /// Its connection.
    pub number: u64,
    pub peer: Peer,
    pub hello: Hello,
    pub usage: UsageMap,
}

/// The thread that asks, and both ways to it.
#[derive(Debug)]
pub struct Enquiries {
    rules: Current,
    questions: Sender<Applicant>,
    answers: Receiver<(Applicant, nix::Result<Verdict>)>,
}

impl Enquiries {
    /// `waker` is written to when there is an answer.
    ///
    /// # Errors
    /// Out of threads.
    pub fn start(waker: UnixStream) -> io::Result<Self> {
        let rules = Current::default();
        let (questions, asked) = channel();
        let (answer, answers) = channel();
        let current = rules.clone();
        thread::Builder::new().name("rules".to_owned()).spawn(move || {
            let mut names = Names::default();
            for applicant in asked {
                let verdict = judge(&current.get(), &applicant, &mut names);
                if answer.send((applicant, verdict)).is_err() {
                    return;
                }
                // If it is full, the loop is woken already.
                let _ = (&waker).write(&[0]);
            }
        })?;
        Ok(Self {
            rules,
            questions,
            answers,
        })
    }

    pub fn rules(&self) -> Current {
        self.rules.clone()
    }

    /// Whether there is anything to ask.
    pub fn are_needed(&self) -> bool {
        !self.rules.get().is_empty()
    }

    /// Asks.
    ///
    /// # Errors
    /// `EAGAIN` if there is nobody to ask any more.
    pub fn ask(&self, applicant: Applicant) -> nix::Result<()> {
        self.questions.send(applicant).map_err(|_| Errno::EAGAIN)
    }

    /// An answer, if there is one.
    pub fn answer(&self) -> Option<(Applicant, nix::Result<Verdict>)> {
        self.answers.try_recv().ok()
    }
}

/// What the rules say of a process.
///
/// # Errors
/// It has ended, or holds up looking at it.
fn judge(rules: &Arc<Rules>, applicant: &Applicant, names: &mut Names) -> nix::Result<Verdict> {
    let mut facts = Facts::of_peer(&applicant.peer, applicant.hello.group.as_str())?;
    if rules.want_user() {
        facts.user = names.get(rules, facts.uid);
    }
    Ok(rules.verdict(&facts))
}

/// The names of users, as they were when they were first asked for.
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
