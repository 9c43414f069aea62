//! Tests completions in a real shell: the words that bash offers.

use std::collections::BTreeSet;

use support::{Mount, artifacts};

use crate::calls::Calls;

/// Returns what bash offers for the last word of a command line.
#[track_caller]
fn offered(mount: &Mount, program: &str, words: &[&str]) -> BTreeSet<String> {
    let script = r#"
        program=$1; shift
        eval "$(gcgroupfs completions bash "$program")"
        COMP_WORDS=("$program" "$@") COMP_CWORD=$# COMP_TYPE=9
        "_clap_complete_${program//-/_}" "$program" "${@: -1}" "${@: -2:1}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut command = mount.bare_command("bash");
    let path = artifacts().dist().join("bin");
    let path = format!("{}:{}", path.display(), std::env::var("PATH").expect("a path"));
    command
        .args(["-c", script, "bash", program])
        .args(words)
        .env("PATH", path)
        .env("GCGROUP_SOCKET", mount.socket());
    let out = command.output().expect("bash runs");
    assert!(out.stderr.is_empty(), "{out:?}");
    let text = String::from_utf8(out.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn processes_groups_files_and_columns_are_completed() {
    let mount = Mount::new();
    let calls = Calls::start(&mount);
    let pid = calls.pid().to_string();
    for group in ["team", "team/batch"] {
        std::fs::create_dir(mount.path().join(group)).expect("a group");
    }
    let both = BTreeSet::from([pid.clone(), "team".to_owned(), "team/batch".to_owned()]);
    for (program, words) in [
        ("gcgroupfs", &["freeze", ""][..]),
        ("gcgroupfs", &["hold", "--compute-freeze", ""]),
        ("gc-preempt", &["--reclaim", ""]),
        ("gc-autopreempt", &["-v", ""]),
    ] {
        let offered = offered(&mount, program, words);
        assert!(offered.is_superset(&both), "{program} {words:?}: {offered:?}");
    }
    let groups = offered(&mount, "gcgroupfs", &["run", "--group", "te"]);
    assert_eq!(
        groups,
        BTreeSet::from(["team".to_owned(), "team/batch".to_owned()])
    );
    let files = offered(&mount, "gcgroupfs", &["get", &format!("{pid}/memory.lim")]);
    assert_eq!(files, BTreeSet::from([format!("{pid}/memory.limit")]));
    let files = offered(&mount, "gcgroupfs", &["set", "team/"]);
    assert!(
        files.contains("team/compute.priority") && files.contains("team/batch/"),
        "{files:?}"
    );
    let below = mount
        .path()
        .join(format!("{pid}/compute.f"))
        .display()
        .to_string();
    let files = offered(&mount, "gcgroupfs", &["wait", &below]);
    assert_eq!(files, BTreeSet::from([format!("{}reeze", below)]));
    assert_eq!(
        offered(&mount, "gcgroupfs", &["ls", "--format", "pid,memo"]),
        BTreeSet::from(["pid,memory", "pid,memory_waits"].map(str::to_owned))
    );
    let states = offered(&mount, "gc-everywhere", &["o"]);
    assert_eq!(states, BTreeSet::from(["off", "on"].map(str::to_owned)));
    let commands = offered(&mount, "gcgroupfs", &[""]);
    assert!(
        commands.contains("explain") && !commands.contains("sever"),
        "{commands:?}"
    );
}

#[test]
fn completion_without_a_daemon_is_empty() {
    let mount = Mount::new();
    let mut command = mount.bare_command(artifacts().gcgroupfs());
    command
        .args(["--", "gcgroupfs", "freeze", "7"])
        .env("GCGROUPFS_COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", "2")
        .env("GCGROUP_SOCKET", mount.root().join("absent"));
    let out = command.output().expect("the command runs");
    assert!(
        out.status.success() && out.stdout.is_empty() && out.stderr.is_empty(),
        "{out:?}"
    );
}
