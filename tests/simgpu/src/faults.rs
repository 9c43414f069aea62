//! Injected faults: which call of which function returns an error instead of being executed.

use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// The faults of a process (`SIMGPU_FAULTS` and `SIMGPU_FAULTS_WHILE`, see `config`).
#[derive(Debug, Default)]
pub struct Faults {
    list: Vec<Fault>,
    /// Calls count and are struck only while this file exists.
    only_while: Option<PathBuf>,
}

#[derive(Debug)]
struct Fault {
    /// Exported name of a function, or prefix of several names.
    name: String,
    is_beginning: bool,
    strike: Strike,
    when: When,
    /// Calls so far of the matching functions.
    calls: AtomicU32,
}

/// Effect of a fault on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strike {
    /// The call returns the error and does nothing.
    Error(u32),
    /// The process is stopped (SIGSTOP) before the call is executed.
    Stop,
    /// The call is a cancellation point: a cancelled thread ends before the call is executed.
    Cancel,
}

impl Strike {
    fn parse(text: &str) -> Option<Strike> {
        match text {
            "stop" => Some(Strike::Stop),
            "cancel" => Some(Strike::Cancel),
            error => count(error).map(Strike::Error),
        }
    }
}

/// Calls that a fault affects; they count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    At(u32),
    From(u32),
}

impl Faults {
    /// Returns the faults that the environment names.
    pub fn from_env() -> Faults {
        Faults {
            only_while: std::env::var_os("SIMGPU_FAULTS_WHILE").map(PathBuf::from),
            ..Faults::parse(&std::env::var("SIMGPU_FAULTS").unwrap_or_default())
        }
    }

    /// Parses a list. Invalid entries are reported on standard error and skipped.
    fn parse(list: &str) -> Faults {
        let rows = list.split(',').map(str::trim).filter(|row| !row.is_empty());
        let faults = rows.filter_map(|row| {
            let fault = Fault::parse(row);
            if fault.is_none() {
                eprintln!(
                    "simgpu: SIMGPU_FAULTS: expected NAME=ERROR, NAME=ERROR@N or NAME=ERROR@N+, got {row}"
                );
            }
            fault
        });
        Faults {
            list: faults.collect(),
            only_while: None,
        }
    }

    /// Returns whether there are no faults.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Counts a call of a function, and returns the effect of the first fault that strikes it.
    pub fn strike(&self, name: &str) -> Option<Strike> {
        if self.only_while.as_ref().is_some_and(|file| !file.exists()) {
            return None;
        }
        let struck = self.list.iter().map(|fault| fault.strike(name));
        // Every matching fault counts the call, also after one that strikes.
        struck.fold(None, |first, next| first.or(next))
    }
}

impl Fault {
    fn parse(row: &str) -> Option<Fault> {
        let (name, rest) = row.split_once('=')?;
        let (error, when) = match rest.split_once('@') {
            None => (rest, When::Always),
            Some((error, at)) => match at.strip_suffix('+') {
                Some(from) => (error, When::From(count(from)?)),
                None => (error, When::At(count(at)?)),
            },
        };
        let (name, is_beginning) = match name.strip_suffix('*') {
            Some(beginning) => (beginning, true),
            None => (name, false),
        };
        Some(Fault {
            name: name.to_owned(),
            is_beginning,
            strike: Strike::parse(error)?,
            when,
            calls: AtomicU32::new(0),
        })
    }

    fn strike(&self, name: &str) -> Option<Strike> {
        let is_meant = if self.is_beginning {
            name.starts_with(&self.name)
        } else {
            name == self.name
        };
        if !is_meant {
            return None;
        }
        let call = self.calls.fetch_add(1, Relaxed) + 1;
        let strikes = match self.when {
            When::Always => true,
            When::At(at) => call == at,
            When::From(from) => call >= from,
        };
        strikes.then_some(self.strike)
    }
}

/// Parses a positive number.
fn count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&number| number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strikes(list: &str, calls: &[&str]) -> Vec<Option<Strike>> {
        let faults = Faults::parse(list);
        calls.iter().map(|name| faults.strike(name)).collect()
    }

    fn answers(list: &str, calls: &[&str]) -> Vec<Option<u32>> {
        let error = |strike| match strike {
            Strike::Error(error) => error,
            other => panic!("{other:?}"),
        };
        let strikes = strikes(list, calls).into_iter();
        strikes.map(|strike| strike.map(error)).collect()
    }

    #[test]
    fn fault_strikes_always_once_or_from_a_call_on() {
        let calls = ["a", "b", "a", "a"];
        assert_eq!(answers("a=2", &calls), [Some(2), None, Some(2), Some(2)]);
        assert_eq!(answers("a=2@2", &calls), [None, None, Some(2), None]);
        assert_eq!(answers("a=2@2+", &calls), [None, None, Some(2), Some(2)]);
    }

    #[test]
    fn prefix_matches_all_names_and_counts_them_together() {
        let calls = ["cuMemAlloc_v2", "cuMemFree_v2", "cuInit"];
        assert_eq!(answers("cuMem*=1", &calls), [Some(1), Some(1), None]);
        assert_eq!(
            answers("cuMem*=1@2,cuMemAlloc_v2=2", &calls),
            [Some(2), Some(1), None]
        );
    }

    #[test]
    fn call_can_be_stopped_or_made_a_cancellation_point() {
        let calls = ["a", "b", "a"];
        let (stop, cancel) = (Some(Strike::Stop), Some(Strike::Cancel));
        assert_eq!(strikes("a=stop@2,b=cancel", &calls), [None, cancel, stop]);
    }

    #[test]
    fn fault_neither_strikes_nor_counts_without_its_file() {
        let file = std::env::temp_dir().join(format!("simgpu-faults-{}", std::process::id()));
        let faults = Faults {
            only_while: Some(file.clone()),
            ..Faults::parse("a=2@2+")
        };
        let strike = || faults.strike("a").is_some();
        assert_eq!([strike(), strike()], [false, false]);
        std::fs::write(&file, "").unwrap();
        assert_eq!([strike(), strike()], [false, true]);
        std::fs::remove_file(&file).unwrap();
        assert!(!strike());
    }

    #[test]
    fn invalid_entry_is_skipped() {
        for list in ["a", "a=", "a=0", "a=2@0", "a=2@x", "a=-1", ""] {
            assert!(Faults::parse(list).is_empty(), "{list}");
        }
    }
}
