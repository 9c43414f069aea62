//! Processes that others wait for: the lines of `gcgroup.waits`.

use serde::{Deserialize, Serialize};

use super::{Files, Process};

/// File that the waits are parsed from.
const FILE: &str = "gcgroup.waits";

/// Process that another one waits or has waited for, on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    pub pid: u32,
    pub comm: String,
    pub gpu: usize,
    /// Thing that it has: `turn` (to submit work), `memory` (the memory turn) or `room` (memory that is to
    /// move out).
    pub r#for: String,
    /// Microseconds of these waits.
    pub usec: u64,
    pub now: bool,
    /// Priority in force; `None`: it has ended.
    pub priority: Option<u64>,
}

impl Wait {
    /// Parses the waits of a process. On each GPU the one of now is first.
    pub(super) fn all(files: &Files) -> Vec<Self> {
        let lines = files.text(FILE).unwrap_or_default().lines();
        lines.filter_map(Self::parse).collect()
    }

    fn parse(line: &str) -> Option<Self> {
        let (pid, pairs) = line.split_once(' ')?;
        let value = |key: &str| {
            let mut pairs = pairs.split(' ').filter_map(|pair| pair.split_once('='));
            pairs.find_map(|(found, value)| (found == key).then_some(value))
        };
        Some(Self {
            pid: pid.parse().ok()?,
            comm: value("comm")?.to_owned(),
            gpu: value("gpu")?.parse().ok()?,
            r#for: value("for")?.to_owned(),
            usec: value("usec")?.parse().ok()?,
            now: value("now")? == "1",
            priority: value("priority").and_then(|number| number.parse().ok()),
        })
    }
}

impl Process {
    /// Returns the process that it waits for now, on the GPU of this index or on any.
    pub fn waits_for(&self, gpu: Option<usize>) -> Option<&Wait> {
        let mut waits = self.waits.iter().filter(|wait| wait.now);
        waits.find(|wait| gpu.is_none_or(|gpu| gpu == wait.gpu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_and_others_left_out() {
        let mut files = Files::default();
        let text = "7 gpu=0 for=turn usec=12 now=1 priority=3 comm=a\\040b\n\
                    8 gpu=1 for=memory usec=5 now=0 comm=x future=1\n\
                    9 gpu=x for=turn usec=1 now=1 comm=y\n\n";
        files.insert(FILE, text);
        let waits = Wait::all(&files);
        let shown: Vec<_> = waits
            .iter()
            .map(|wait| (wait.pid, wait.comm.as_str(), wait.gpu, wait.r#for.as_str()))
            .collect();
        assert_eq!(shown, [(7, "a\\040b", 0, "turn"), (8, "x", 1, "memory")]);
        assert_eq!([waits[0].priority, waits[1].priority], [Some(3), None]);
        let process = Process {
            waits,
            ..Process::default()
        };
        assert_eq!(process.waits_for(None).map(|wait| wait.usec), Some(12));
        assert!(process.waits_for(Some(1)).is_none(), "no longer");
    }
}
