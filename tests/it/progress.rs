//! Tests the progress that `gcgroupfs suspend` and `resume` show while they wait: a bar on a terminal, lines
//! otherwise.

use std::io::Read as _;
use std::process::{Command, Stdio};

use support::{Governed, Mount};

use crate::suspend::{alloc, config, suspend};

const MIB: u64 = 1 << 20;

/// Returns a suspended program of 128 MiB, and one that leaves it no room to resume.
fn without_room() -> (Mount, Governed, Governed) {
    let mount = Mount::with(config().env("SIMGPU_MEMORY", "256M"));
    let mut program = mount.obedient();
    alloc(&mut program, 128 * MIB);
    suspend(&mount, program.pid());
    let mut other = mount.obedient();
    alloc(&mut other, 200 * MIB);
    (mount, program, other)
}

#[test]
fn terminal_has_a_bar_until_the_memory_is_back() {
    let (mount, mut program, other) = without_room();
    let pid = program.pid().to_string();
    let resume = mount.gcgroupfs(&["resume", "--wait", &pid]);
    let words: Vec<&str> = [resume.get_program()]
        .into_iter()
        .chain(resume.get_args())
        .map(|word| word.to_str().expect("text"))
        .collect();
    // Gives the program a terminal.
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &words.join(" "), "/dev/null"]);
    for (name, value) in resume.get_envs() {
        script.env(name, value.expect("a value"));
    }
    script
        .env("TERM", "screen")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = script.spawn().expect("script starts");
    let mut out = child.stdout.take().expect("a pipe");
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.contains("0%, step room") {
        let length = out.read(&mut buffer).expect("the output");
        assert!(length > 0, "it has ended: {text:?}");
        text += &String::from_utf8_lossy(&buffer[..length]);
    }
    assert!(
        text.contains("\r\u{1b}[K[ ") && text.contains(" 0/144M]"),
        "{text:?}"
    );
    drop(other);
    out.read_to_string(&mut text).expect("the output");
    assert!(child.wait().expect("it ends").success(), "{text:?}");
    assert!(text.ends_with("\r\u{1b}[K"), "the bar is erased: {text:?}");
    assert_eq!(program.ask("verify"), "verified 1");
}

#[test]
fn lines_without_control_sequences_go_to_a_file() {
    let (mount, mut program, other) = without_room();
    let pid = program.pid().to_string();
    let mut command = mount.gcgroupfs(&["resume", "--wait", &pid]);
    command.stderr(Stdio::piped());
    let mut child = command.spawn().expect("gcgroupfs runs");
    let mut errors = child.stderr.take().expect("a pipe");
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.ends_with("step room\n") {
        let length = errors.read(&mut buffer).expect("the output");
        assert!(length > 0, "it has ended: {text:?}");
        text += &String::from_utf8_lossy(&buffer[..length]);
    }
    assert!(
        text.starts_with("gcgroupfs: [") && !text.contains('\u{1b}'),
        "{text:?}"
    );
    drop(other);
    assert!(child.wait().expect("it ends").success());
    assert_eq!(program.ask("verify"), "verified 1");
}
