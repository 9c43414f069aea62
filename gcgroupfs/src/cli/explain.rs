//! `gcgroupfs explain`: says what bounds a process or a group and where that comes from, what it waits for,
//! what was refused and what can be done; or why a process is not governed.

mod gather;

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Args;

use super::Socket;
use gcgroup_client::Client;
use gcgroupfs_model::diagnosis::diagnose;
use gcgroupfs_model::tree::Explanation;
use gcgroupfs_sys::clock::local_time;
use nix::errno::Errno;

/// Age from which a time is printed with its date, seconds.
const OLD: u64 = 12 * 3600;

#[derive(Debug, Args)]
#[command(after_help = "\
Each line begins with the local time at which it came about, if that is known. Origins and refusals are kept \
until the daemon ends: 8 refusals of each process and group.

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
        (None, Ok(_)) => bail!("{}: no such process or group", arguments.name),
    }
}

fn text(explanation: &Explanation) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
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
    use gcgroupfs_model::tree::{Line, Section};

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
