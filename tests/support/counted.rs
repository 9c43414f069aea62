//! Programs run under counting tools: strace(1) and valgrind(1), which scripts/setup-debian.sh installs.

use std::process::Command;

/// Returns the command that runs `command` under a tool, with its environment.
fn under(tool: &str, arguments: &[&str], command: &Command) -> Command {
    let mut whole = Command::new(tool);
    whole
        .args(arguments)
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        value.map(|value| whole.env(name, value));
    }
    whole
}

/// Counts the instructions of all threads over a whole run.
///
/// # Panics
/// If valgrind does not run, or the program fails.
#[track_caller]
pub fn instructions(command: &Command) -> u64 {
    let arguments = ["--tool=callgrind", "--callgrind-out-file=/dev/null", "--"];
    let output = under("valgrind", &arguments, command)
        .output()
        .expect("valgrind runs");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    let total = words.lines().find_map(|line| line.split_once("Collected : "));
    total
        .and_then(|(_, count)| count.trim().parse().ok())
        .unwrap_or_else(|| panic!("no count in {words}"))
}

/// Counts the system calls of the first thread over a whole run.
///
/// # Panics
/// If strace does not run, or the program fails.
#[track_caller]
pub fn system_calls(command: &Command) -> usize {
    let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let path = file.path().display().to_string();
    let output = under("strace", &["-f", "-o", &path], command)
        .output()
        .expect("strace runs");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(file.path()).expect("strace has written it");
    let thread = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    let first = text.lines().next().map(thread).expect("a system call");
    // A call interrupted by another thread's has two lines.
    let lines = text.lines().filter(|line| !line.contains(" resumed>"));
    lines.filter(|line| thread(line) == first).count()
}
