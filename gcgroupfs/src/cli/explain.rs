//! `gcgroupfs explain`: says what bounds a process or a group and where that comes from, what it waits for,
//! what was refused and what can be done; or why a process is not governed.

mod gather;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Args;

use super::Socket;
use gcgroup_client::Client;
use gcgroupfs_model::diagnosis::diagnose;
use gcgroupfs_model::text::size;
use gcgroupfs_model::tree::{Explanation, Line, Section};
use gcgroupfs_sys::clock::local_time;
use nix::errno::Errno;

/// Age from which a time is printed with its date, seconds.
const OLD: u64 = 12 * 3600;

#[derive(Debug, Args)]
#[command(after_help = "\
Each line begins with the local time at which it came about, if that is known. Origins and refusals are kept \
until the daemon ends: 8 refusals of each process and group. Of a process that has ended, the last 64 of \
which are kept (file exited), the sums are printed.

Exit status: 0 explained; 1 no such process or group, or not permitted; 2 usage error.")]
pub(super) struct Arguments {
    /// Process or group by the name of its directory: 4242, team/a, /gcgroup/team/a
    #[arg(value_name = "PID|GROUP")]
    name: String,
}

/// Returns the text to print.
///
/// # Errors
/// There is no such process or group; the daemon refuses.
pub(super) fn explain(socket: &Socket, arguments: &Arguments) -> anyhow::Result<String> {
    let (socket, path) = socket.of_path(&arguments.name);
    let mut client = Client::connect(&socket);
    if let Ok(client) = &mut client {
        match client.explain(&path)? {
            Err(refusal) if refusal.errno == Errno::ENOENT => {}
            explanation => {
                let explanation = serde_json::from_str(&explanation?);
                return Ok(text(&explanation.context("the daemon's answer is invalid")?));
            }
        }
    }
    let observed = match path.parse() {
        Ok(pid) => gather::observe(pid, &socket, client.as_ref().ok()),
        Err(_) => None,
    };
    match (observed, client) {
        (Some(observed), _) => Ok(text(&diagnose(&observed))),
        (None, Err(error)) => Err(error),
        (None, Ok(mut client)) => match ended(&client.get("exited")??, &path, now()) {
            Some(explanation) => Ok(text(&explanation)),
            None => bail!("{}: no such process or group", arguments.name),
        },
    }
}

/// Figure of a process that has ended: the key in `exited`, what it is, and its format.
type Figure = (&'static str, &'static str, fn(u64) -> String);

const FIGURES: &[Figure] = &[
    ("memory.peak", "memory.peak", size),
    ("compute.usage_usec", "GPU time", |usec| {
        format!("{}.{:03} s", usec / 1_000_000, usec / 1000 % 1000)
    }),
    ("nr_launches", "kernels launched", |count| count.to_string()),
    ("nr_graphs", "graphs launched", |count| count.to_string()),
    ("nr_copies", "copies", |count| count.to_string()),
    ("nr_alloc", "allocations", |count| count.to_string()),
    ("nr_alloc_fail", "allocations that failed", |count| {
        count.to_string()
    }),
    ("oom", "of these by its own memory.limit", |count| {
        count.to_string()
    }),
    ("group_max", "of these by the limit of a group", |count| {
        count.to_string()
    }),
];

/// Explains a process that has ended, from the lines of `exited`; `now` in seconds since 1970.
fn ended(exited: &str, pid: &str, now: u64) -> Option<Explanation> {
    let mut lines = exited.lines().filter_map(|line| line.split_once(' '));
    let (_, line) = lines.find(|(of, _)| *of == pid)?;
    let pairs: BTreeMap<&str, &str> = line.split(' ').filter_map(|pair| pair.split_once('=')).collect();
    let number = |key: &str| pairs.get(key)?.parse::<u64>().ok();
    let at = |text: &str, key: &str| Line {
        age: number(key).map(|time| now.saturating_sub(time)),
        text: text.to_owned(),
    };
    let figures = FIGURES.iter().filter_map(|(key, what, show)| {
        Some(Line {
            age: None,
            text: format!("{what}: {}", show(number(key)?)),
        })
    });
    let section = |title: &str, lines| Section {
        title: title.to_owned(),
        lines,
    };
    let comm = pairs.get("comm").unwrap_or(&"unknown");
    Some(Explanation {
        title: format!("process {pid} ({comm}) has ended"),
        sections: vec![
            section("Life", vec![at("started", "start"), at("ended", "end")]),
            section("Used in all", figures.collect()),
        ],
    })
}

/// Returns the seconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

fn text(explanation: &Explanation) -> String {
    let now = now();
    let mut out = format!("{}\n", explanation.title);
    for section in &explanation.sections {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "\n{}:", section.title);
        let width = section.lines.iter().filter_map(|line| line.age).max();
        for line in &section.lines {
            let time = match (line.age, width) {
                (Some(age), _) => local_time(now.saturating_sub(age), age >= OLD) + " ",
                // Under the text of the other lines.
                (None, Some(oldest)) => " ".repeat(if oldest >= OLD { 15 } else { 9 }),
                (None, None) => String::new(),
            };
            let _ = writeln!(out, "  {time}{}", line.text);
        }
        if section.lines.is_empty() {
            out.push_str("  none\n");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_process_is_explained_by_its_latest_line() {
        let lines = "71 comm=a start=5 end=9 memory.peak=2097152 compute.usage_usec=1500000 nr_alloc=1\n\
                     7 comm=b start=6 end=8 memory.peak=4096 oom=2\n7 comm=c start=1 end=2\n";
        let shown = text(&ended(lines, "7", 10).unwrap());
        assert!(shown.starts_with("process 7 (b) has ended\n"), "{shown}");
        for line in ["memory.peak: 4 KiB", "of these by its own memory.limit: 2"] {
            assert!(shown.contains(line), "{shown}");
        }
        assert!(ended(lines, "1", 10).is_none());
    }

    #[test]
    fn lines_are_aligned_whether_their_time_is_known() {
        let line = |age, text: &str| Line {
            age,
            text: text.to_owned(),
        };
        let section = |title: &str, lines| Section {
            title: title.to_owned(),
            lines,
        };
        let shown = text(&Explanation {
            title: "process 7".to_owned(),
            sections: vec![
                section("A", vec![line(Some(1), "one"), line(None, "two")]),
                section("B", vec![line(None, "three")]),
                section("C", vec![]),
            ],
        });
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[..3], ["process 7", "", "A:"]);
        assert_eq!(lines[3].find("one"), Some(11));
        assert_eq!(lines[4].find("two"), Some(11));
        assert_eq!(lines[5..], ["", "B:", "  three", "", "C:", "  none"]);
    }
}
