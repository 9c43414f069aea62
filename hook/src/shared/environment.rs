//! Settings requested by the environment (`gcgroup_abi::environment`). With a daemon, the daemon decides.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use gcgroup_abi::environment::{
    GCGROUP_FREEZE, GCGROUP_GROUP, GCGROUP_JOB, GCGROUP_JOB_LIMITS, GCGROUP_LOG, GCGROUP_MEMORY_LIMIT,
    GCGROUP_PRIORITY, GCGROUP_REQUIRED, GCGROUP_SOCKET, GCGROUP_SWAP, VARIABLES, Value, Variable,
};
use gcgroup_abi::message::{GroupName, Hello};
use gcgroup_abi::{DEFAULT_SOCKET, NO_LIMIT};

use crate::driver::thread;
use crate::sys;

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) socket: OsString,
    pub(crate) hello: Hello,
    /// Whether the process does not swap even if the daemon enables it.
    pub(crate) refuses_swap: bool,
    /// Whether CUDA is refused unless a daemon governs the process in the requested group.
    pub(crate) required: bool,
    /// File of the hook's log.
    pub(crate) log: Option<OsString>,
    /// The first variable whose value is not understood. It counts as not set, and CUDA is refused if
    /// `required`.
    pub(crate) misunderstood: Option<&'static str>,
}

impl Options {
    /// Reads the environment; where a program has cleared it, the one with which it was executed.
    pub(crate) fn from_environment() -> Self {
        if VARIABLES
            .iter()
            .any(|variable| sys::variable(variable.name).is_some())
        {
            return Self::from(sys::variable);
        }
        // Reading a file is a cancellation point.
        let executed = thread::uncanceled(sys::executed_environment);
        Self::from(|name| sys::variable_in(&executed, name))
    }

    fn from(get: impl Fn(&str) -> Option<OsString>) -> Self {
        let parsed = |variable: &Variable| variable.parse(get(variable.name).unwrap_or_default().as_bytes());
        let number = |variable| match parsed(variable) {
            Ok(Some(Value::Number(number))) => Some(number),
            _ => None,
        };
        let path =
            |variable: &Variable| get(variable.name).filter(|_| parsed(variable) == Ok(Some(Value::Text)));
        let is_on = |variable| number(variable) == Some(1);
        // `1` means without a limit.
        let swap = number(&GCGROUP_SWAP).map(|bytes| if bytes == 1 { NO_LIMIT } else { bytes });
        let group = |variable| match parsed(variable) {
            Ok(Some(Value::Group(group))) => group,
            _ => GroupName::NONE,
        };
        let (group, job) = (group(&GCGROUP_GROUP), group(&GCGROUP_JOB));
        // A value that was set since is the process's own.
        let text = |variable: &Variable| get(variable.name).unwrap_or_default();
        let mut of_job = text(&GCGROUP_MEMORY_LIMIT);
        of_job.push("/");
        of_job.push(text(&GCGROUP_SWAP));
        let has_jobs_limits = text(&GCGROUP_JOB_LIMITS) == of_job;
        let priority = number(&GCGROUP_PRIORITY).and_then(|priority| priority.try_into().ok());
        Self {
            socket: path(&GCGROUP_SOCKET).unwrap_or(DEFAULT_SOCKET.into()),
            hello: Hello {
                memory_limit: number(&GCGROUP_MEMORY_LIMIT).unwrap_or(NO_LIMIT),
                priority: priority.unwrap_or(u32::MAX),
                freeze: is_on(&GCGROUP_FREEZE).into(),
                can_swap: swap.is_some_and(|bytes| bytes != 0).into(),
                memory_swap_max: swap.unwrap_or(0),
                group,
                has_jobs_limits: has_jobs_limits.into(),
                names_job: (job != GroupName::NONE && job == group).into(),
                ..Hello::PLAIN
            },
            refuses_swap: swap == Some(0),
            required: is_on(&GCGROUP_REQUIRED) || parsed(&GCGROUP_REQUIRED).is_err(),
            log: path(&GCGROUP_LOG),
            misunderstood: VARIABLES
                .iter()
                .find(|variable| parsed(variable).is_err())
                .map(|variable| variable.name),
        }
    }
}

#[cfg(test)]
mod tests;
