//! `gcgroupfs explain`: says what bounds a process or a group and where that comes from, what it waits for,
//! what was refused and what can be done; or why a process is not governed.

mod gather;

use std::fmt::Write;

use anyhow::{Context, bail};
use clap::Args;

use super::Socket;
use super::freeze::path;
use super::report::{ended, now};
use gcgroup_abi::Submission;
use gcgroup_client::Client;
use gcgroupfs_model::diagnosis::diagnose;
use gcgroupfs_model::text::{size, word};
use gcgroupfs_model::tree::{Exited, Explanation, Line, Section};
use gcgroupfs_sys::clock::local_time;
use nix::errno::Errno;

/// Age from which a time is printed with its date, seconds.
const OLD: u64 = 12 * 3600;

#[derive(Debug, Args)]
#[command(after_help = "\
Each line begins with the local time at which it came about, if that is known. Origins and refusals are kept \
until the daemon ends: 8 refusals of each process and group. Of a process that has ended, its record is \
printed (gcgroupfs report); command line, group and refusals to its user and root only.

Exit status: 0 explained; 1 no such process or group, or not permitted; 2 usage error.")]
pub(super) struct Arguments {
    /// Process or group by the name of its directory: 4242, team/a, /gcgroup/team/a
    #[arg(value_name = "PID|GROUP", value_parser = path)]
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
                return shown(&explanation?);
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
        (None, Ok(mut client)) => {
            let ended = match path.parse() {
                Ok(pid) => ended(&mut client, Some(pid))?.pop(),
                Err(_) => None,
            };
            match ended {
                Some(exited) => Ok(text(&explain_ended(&exited, now()))),
                None => bail!("{}: no such process or group", arguments.name),
            }
        }
    }
}

/// Returns the text of the daemon's answer.
///
/// # Errors
/// The answer is not an explanation.
pub(super) fn shown(answer: &str) -> anyhow::Result<String> {
    let explanation = serde_json::from_str(answer);
    Ok(text(&explanation.context("the daemon's answer is invalid")?))
}

/// Explains a process that has ended; `now` in seconds since 1970.
fn explain_ended(exited: &Exited, now: u64) -> Explanation {
    let (identity, sums) = (&exited.identity, &exited.sums);
    let ago = |time: u64, text: String| Line {
        age: Some(now.saturating_sub(time)),
        text,
    };
    let plain = |text: String| Line { age: None, text };
    let by = match exited.by.as_str() {
        "" => String::new(),
        by => format!(", killed by {by}"),
    };
    let ending = match exited.how.split_once(':') {
        Some(("exit", status)) => format!("ended with exit status {status}"),
        Some(("signal", number)) => format!("ended by signal {number}{by}"),
        _ if exited.how == "exec" => "executed another program".to_owned(),
        _ => "ended; how is not known".to_owned(),
    };
    let mut life = vec![
        ago(identity.started, "used CUDA first".to_owned()),
        ago(exited.end, ending),
    ];
    life.extend((!identity.args.is_empty()).then(|| plain(format!("command line: {}", identity.args))));
    life.extend((!exited.group.is_empty()).then(|| plain(format!("group /{}", word(&exited.group)))));
    let seconds = |usec: u64| format!("{}.{:03} s", usec / 1_000_000, usec / 1000 % 1000);
    let counts = [
        ("kernels launched", sums.submitted(Submission::Kernel)),
        ("graphs launched", sums.submitted(Submission::Graph)),
        ("copies", sums.submitted(Submission::Copy)),
        ("allocations", sums.nr_alloc),
        ("allocations that failed", sums.nr_alloc_fail),
        ("of these by its own memory.limit", sums.nr_oom),
        ("of these by the limit of a group", sums.nr_group_max),
    ];
    let mut used = vec![
        plain(format!("memory.peak: {}", size(exited.peak))),
        plain(format!("memory over time: {} byte-seconds", exited.byte_seconds)),
        plain(format!("GPU time: {}", seconds(sums.usage_nsec / 1000))),
    ];
    let gpus = exited.gpus.iter();
    used.extend(gpus.map(|(uuid, nsec)| plain(format!("of this on {uuid}: {}", seconds(nsec / 1000)))));
    let joules = exited.energy_nanojoules / 1_000_000_000;
    used.extend((joules != 0).then(|| plain(format!("energy of the GPUs: about {joules} J (estimated)"))));
    used.extend(counts.map(|(what, count)| plain(format!("{what}: {count}"))));
    let waits = [
        ("for a turn or a quota", sums.throttled_usec),
        ("while frozen", sums.frozen_usec),
        ("for memory", exited.memory_wait_usec),
    ];
    let waits = waits.into_iter().filter(|(_, usec)| *usec != 0);
    let waits = waits.map(|(what, usec)| plain(format!("waited {what}: {}", seconds(usec))));
    let refusals = exited.refusals.iter().rev().map(|refusal| {
        let (count, gpu) = (refusal.count, refusal.gpu);
        let by = match refusal.by.as_str() {
            "memory" => "no limit; the memory was used up".to_owned(),
            by => {
                let (limit, used) = (size(refusal.limit), size(refusal.used));
                format!("memory.limit of {} {limit}, used {used}", word(by))
            }
        };
        let bytes = size(refusal.bytes);
        ago(
            refusal.time,
            format!("refused {count} on GPU {gpu}, the last of {bytes}: {by}"),
        )
    });
    let section = |title: &str, lines| Section {
        title: title.to_owned(),
        lines,
    };
    Explanation {
        title: format!(
            "process {} ({}) of uid {} has ended",
            identity.pid, identity.comm, identity.uid
        ),
        sections: vec![
            section("Life", life),
            section("Used in all", used),
            section("Waits", waits.collect()),
            section("Last refusals", refusals.collect()),
        ],
    }
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
