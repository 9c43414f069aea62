//! Tests what `gcgroupfs top` shows on narrow, wide and dumb terminals, and the choice of columns.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use support::Config;

use super::{shown, team, top};

fn titles(lines: &[String]) -> Vec<&str> {
    let title = lines.iter().find(|line| line.contains(" NAME"));
    title.map_or(Vec::new(), |line| line.split_whitespace().collect())
}

#[test]
fn name_stays_on_narrow_screens_and_history_grows_on_wide_ones() {
    let (mount, shell) = team(Config::default());
    let pid = shell.pid();
    let screen = shown(&mount, pid);
    screen.resize(40);
    let lines = screen.wait("narrow columns", |lines| (1..6).contains(&titles(lines).len()));
    assert_eq!(titles(&lines), ["PID", "GPU%", "STATE", "NAME"], "{lines:?}");
    assert!(lines.iter().all(|line| line.chars().count() <= 40), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("    driver_")), "{lines:?}");
    screen.resize(200);
    let lines = screen.wait("all columns", |lines| titles(lines).contains(&"HISTORY"));
    let title = lines.iter().find(|line| line.contains("HISTORY"));
    let name = title.and_then(|line| line.find("NAME"));
    // All 60 points of the history.
    assert!(name.is_some_and(|at| at > 140), "{title:?}");
    screen.press(&["F2"]);
    screen.wait_line(&["Columns, as pid,quota,name"]);
    screen.enter("quota,waits_for,pid");
    let lines = screen.wait("the chosen columns", |lines| titles(lines).len() == 4);
    assert_eq!(titles(&lines), ["quota", "waits_for", "PID", "NAME"]);
    screen.press(&["F2"]);
    screen.enter(",nothing");
    screen.wait_line(&["columns are pid, "]);
}

#[test]
fn dumb_terminal_gets_text_without_control_sequences() {
    let (mount, shell) = team(Config::default());
    let pid = shell.pid().to_string();
    let command = top(&mount, &[]);
    let words: Vec<&str> = [command.get_program()]
        .into_iter()
        .chain(command.get_args())
        .map(|word| word.to_str().expect("text"))
        .collect();
    // Gives the program a terminal.
    let mut script = Command::new("script");
    script.args(["--quiet", "--command", &words.join(" "), "/dev/null"]);
    for (name, value) in command.get_envs() {
        script.env(name, value.expect("a value"));
    }
    script
        .env("TERM", "dumb")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = script.spawn().expect("script starts");
    let out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut rows = 0;
    for line in out.lines().map_while(Result::ok) {
        assert!(!line.contains('\u{1b}'), "{line:?}");
        rows += usize::from(line.trim_start().starts_with(&pid));
        if rows == 2 {
            break;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    assert_eq!(rows, 2, "it is printed again and again");
    let columns = top(&mount, &["--once", "--columns", "pid,quota"]).output();
    let text = String::from_utf8(columns.expect("it runs").stdout).expect("text");
    assert!(text.contains("PID      quota NAME\n"), "{text}");
}
