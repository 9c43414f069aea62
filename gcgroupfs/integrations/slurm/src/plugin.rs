//! Handlers of the callbacks of Slurm.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, bail};

use crate::arguments::{Arguments, OnSuspend};
use crate::options::{Options, Row};
use crate::spank::{self, Context, Spank};
use crate::step::Step;
use crate::{suspend, usage};

/// Functions that Slurm calls, in this order.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Callback {
    Init,
    /// The options have been read. In slurmstepd: as root, before the first task.
    InitPostOpt,
    /// In the process that is to execute the task, as root. An error reaches the user and ends the task; that
    /// of an earlier callback would also drain the node.
    TaskInitPrivileged,
    /// In the process that is to execute the task, as its user.
    TaskInit,
    /// In slurmstepd, for each task.
    TaskPostFork,
    Exit,
}

#[derive(Debug)]
struct State {
    arguments: Arguments,
    options: Options,
    step: Option<Step>,
    /// Why the step has no group although it needs one.
    failure: Option<String>,
    is_watched: bool,
}

/// State of the plugin in this process.
static STATE: Mutex<Option<State>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handles an option of the command line, or one that was passed on to slurmstepd.
///
/// # Errors
/// The value is invalid.
pub(crate) fn take_option(row: &Row, value: &str) -> anyhow::Result<()> {
    let mut state = lock();
    let Some(state) = state.as_mut() else {
        return Ok(());
    };
    let set = state.options.set(row, value);
    set.with_context(|| format!("--{}", row.name))?;
    // In slurmstepd, where users cannot evade the check, `Step::begin` reports it without draining the node.
    match spank::context() {
        Context::Submission => state.options.check_bounds(&state.arguments),
        _ => Ok(()),
    }
}

/// Handles a callback.
///
/// # Errors
/// The reason why Slurm must not go on.
pub(crate) fn call(callback: Callback, spank: &Spank) -> anyhow::Result<()> {
    let mut state = lock();
    if let Callback::Init = callback {
        let arguments = Arguments::parse(&spank.arguments)?;
        *state = Some(State {
            arguments,
            options: Options::default(),
            step: None,
            failure: None,
            is_watched: false,
        });
        return match spank::context() {
            Context::Submission | Context::Step => spank.register_options(),
            Context::Other => Ok(()),
        };
    }
    let Some(state) = state.as_mut().filter(|_| spank::context() == Context::Step) else {
        return Ok(());
    };
    match callback {
        Callback::Init => Ok(()),
        Callback::InitPostOpt => {
            match Step::begin(spank, &state.arguments, &state.options) {
                Ok(step) => state.step = step,
                // Reported when the user can read it.
                Err(error) => state.failure = Some(format!("{error:#}")),
            }
            Ok(())
        }
        Callback::TaskInitPrivileged => match &state.failure {
            Some(failure) if state.arguments.best_effort => {
                spank::log_error(&format!(
                    "warning: the step has no group for its GPU work: {failure}"
                ));
                Ok(())
            }
            Some(failure) => bail!("the step is not started without a group for its GPU work: {failure}"),
            None => Ok(()),
        },
        // Left alone by `best-effort`.
        Callback::TaskInit if state.failure.is_some() => Ok(()),
        Callback::TaskInit => Step::set_variables(state.step.as_ref(), spank, &state.arguments),
        Callback::TaskPostFork => {
            if let Some(step) = state.step.as_ref().filter(|_| !state.is_watched) {
                state.is_watched = true;
                if state.arguments.suspend != OnSuspend::Stop {
                    suspend::watch(&state.arguments, step);
                }
                if state.arguments.usage || state.arguments.usage_log.is_some() {
                    usage::measure(&state.arguments, step);
                }
            }
            Ok(())
        }
        Callback::Exit => {
            // The step has ended: an error here changes nothing for it.
            if let Some(step) = &state.step
                && let Err(error) = usage::store(&state.arguments, step)
            {
                spank::log_error(&format!("the step's use of GPUs is not stored: {error:#}"));
            }
            Ok(())
        }
    }
}
