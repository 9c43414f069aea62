//! Progress of memory that moves, while a command waits: a bar on a terminal, lines otherwise.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gcgroup_client::node::{Moving, Process, Reader, Snapshot, Whereabouts, ancestors};

use super::bars::meter;
use super::format::{is_dumb, size};

/// Time between two looks on a terminal, and between two lines otherwise: a short move prints none.
const LOOK: Duration = Duration::from_millis(200);
const LINES: Duration = Duration::from_secs(5);

/// Erases the line of a terminal.
const ERASE: &str = "\r\x1b[K";

/// Progress that is shown on standard error until this is dropped.
#[derive(Debug)]
pub(super) struct Progress {
    /// Whether it is over. Held while something is printed.
    over: Arc<Mutex<bool>>,
    is_bar: bool,
}

impl Progress {
    /// Shows how the memory of processes and groups moves from now on. It looks in a thread, since the daemon
    /// may answer late.
    pub(super) fn of(socket: &Path, paths: &[String]) -> Self {
        let over = Arc::new(Mutex::new(false));
        let is_bar = io::stderr().is_terminal() && !is_dumb();
        let (shared, paths) = (Arc::clone(&over), paths.to_vec());
        let mut reader = Reader::new(socket);
        reader.only(vec!["memory.current", "memory.swap.current", "gcgroup.events"]);
        let begun = Instant::now();
        let before = reader.read().ok().map(|snapshot| memory(&snapshot, &paths));
        thread::spawn(move || {
            loop {
                thread::sleep(if is_bar { LOOK } else { LINES });
                let read = reader.read();
                let is_over = shared.lock().unwrap_or_else(PoisonError::into_inner);
                if *is_over {
                    break;
                }
                let Some((before, snapshot)) = before.zip(read.ok()) else {
                    continue;
                };
                if chosen(&snapshot, &paths).next().is_none() {
                    continue;
                }
                let moving = Moving::between(before, memory(&snapshot, &paths), begun.elapsed());
                let text = text(moving, &snapshot, &paths);
                let (start, end) = if is_bar {
                    (ERASE, "")
                } else {
                    ("gcgroupfs: ", "\n")
                };
                let _ = write!(io::stderr(), "{start}{text}{end}");
            }
        });
        Self { over, is_bar }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        if self.is_bar {
            let _ = write!(io::stderr(), "{ERASE}");
        }
    }
}

fn chosen<'a>(snapshot: &'a Snapshot, paths: &'a [String]) -> impl Iterator<Item = &'a Process> {
    let is_it = |process: &Process, path: &String| {
        let mut groups = ancestors(process.group.as_deref().unwrap_or_default());
        process.pid.to_string() == *path || groups.any(|group| group == path)
    };
    let all = snapshot.processes.iter();
    all.filter(move |process| paths.iter().any(|path| is_it(process, path)))
}

fn memory(snapshot: &Snapshot, paths: &[String]) -> Whereabouts {
    chosen(snapshot, paths)
        .map(|process| Whereabouts::from(&process.usage.memory))
        .sum()
}

/// Returns how far the move is: `[|||||   3G/8G] 37%, 1.2G/s, 2 processes left: step checkpoint`.
fn text(moving: Option<Moving>, snapshot: &Snapshot, paths: &[String]) -> String {
    let moved = match moving {
        Some(one) => {
            let (bar, rate) = (meter(one.bytes, one.total), size(one.bytes_per_second));
            format!("{bar} {}%, {rate}/s", one.percent)
        }
        None => format!(
            "{} 0%",
            meter(0, {
                let all = memory(snapshot, paths);
                all.gpu.saturating_add(all.host)
            })
        ),
    };
    let steps = chosen(snapshot, paths).filter_map(|process| process.usage.events.suspend_step.as_deref());
    let steps: Vec<&str> = steps.collect();
    match steps.as_slice() {
        [] => moved,
        [step] => format!("{moved}, step {step}"),
        [step, ..] => format!("{moved}, {} processes left: step {step}", steps.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroup_client::node::fixture;

    #[test]
    fn text_has_bytes_percent_rate_and_step() {
        let mut snapshot = fixture::snapshot();
        let paths = ["a".to_owned()];
        let before = memory(&snapshot, &paths);
        assert_eq!(before.gpu, 6144);
        assert_eq!(text(None, &snapshot, &paths), "[                  0/6K] 0%");
        let process = &mut snapshot.processes[1].usage;
        (process.memory.current, process.memory.swap.current) = (0, 2048);
        snapshot.processes[0].usage.events.suspend_step = Some("checkpoint".into());
        let moving = Moving::between(before, memory(&snapshot, &paths), Duration::from_secs(1));
        let shown = text(moving, &snapshot, &paths);
        assert_eq!(shown, "[|||||||          2K/6K] 33%, 2K/s, step checkpoint");
        assert_eq!(memory(&snapshot, &["101".to_owned()]), Whereabouts::default());
    }
}
