//! Tests `gcgroupfs ls`: groups, effective limits, filters, and JSON against its schema.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Config, Governed, Mount, python, repository, tree_for_all, wait_for, wait_until};

use crate::driver::{Dir, DriverShell};
use crate::suspend::{resume, suspend};

const MIB: u64 = 1 << 20;

/// Returns what a successful `gcgroupfs ls` prints.
#[track_caller]
fn ls(mount: &Mount, arguments: &[&str]) -> String {
    let words = [&["ls"], arguments].concat();
    let output = mount.gcgroupfs(&words).output().expect("gcgroupfs runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
fn json(mount: &Mount, arguments: &[&str]) -> Value {
    let text = ls(mount, &[&["--json"], arguments].concat());
    validate(&text);
    serde_json::from_str(&text).expect("JSON")
}

/// Asserts that the text conforms to the schema, and has nothing that the schema does not describe.
#[track_caller]
fn validate(text: &str) {
    let mut command = Command::new(python());
    command
        .arg(repository().join("tests/clients/validate.py"))
        .arg(repository().join("gcgroupfs/doc/ls.schema.json"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let mut validator = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the interpreter starts");
    let mut stdin = validator.stdin.take().expect("a pipe");
    // The validator may end before it reads.
    let _ = stdin.write_all(text.as_bytes());
    drop(stdin);
    let output = validator.wait_with_output().expect("the validator ends");
    assert!(output.status.success(), "{output:?}\n{text}");
}

/// Returns the words of each row without the title.
fn rows(text: &str) -> Vec<String> {
    let rows = text.lines().skip(1);
    rows.map(|row| row.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// Returns a mount with two GPUs, the groups `team`, `team/a` and `other`, and a process in `team/a`.
fn team() -> (Mount, DriverShell) {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    for group in ["team", "team/a", "other"] {
        std::fs::create_dir(mount.path().join(group)).expect("a new group");
    }
    let mut shell = DriverShell::start(&mount);
    mount.write("team/a", "gcgroup.procs", &shell.pid().to_string());
    assert_eq!(shell.ask(&format!("alloc linear {}", 6 * MIB)), "ok 0");
    mount.write("team", "memory.limit", "10M");
    mount.write("team/a", "memory.limit", "20M");
    Dir::of(&mount, shell.pid()).write("memory.limit", 30 * MIB);
    (mount, shell)
}

#[test]
fn groups_are_listed_with_effective_limits() {
    let (mount, shell) = team();
    let pid = shell.pid();
    let format = "--format=pid,group,gpu,memory,limit,own_limit";
    assert_eq!(
        rows(&ls(&mount, &[format])),
        [
            "- /other - 0 max max".to_owned(),
            "- /team 0 6M 10M max".to_owned(),
            "- /team/a 0 6M 10M max".to_owned(),
            format!("{pid} /team/a 0 6M 10M max"),
        ]
    );
    mount.write("other", "memory.limit", "4M");
    mount.write("team/0", "memory.limit", "8M");
    assert_eq!(
        rows(&ls(&mount, &[format, "--sort=-limit"])),
        [
            "- /team 0 6M 8M 8M".to_owned(),
            "- /team/a 0 6M 8M max".to_owned(),
            format!("{pid} /team/a 0 6M 8M max"),
            "- /other - 0 4M 4M".to_owned(),
        ]
    );
    let tree = ls(&mount, &["--tree", "--format=name,limit"]);
    let mut lines = tree
        .lines()
        .skip(1)
        .map(|line| line.split_at(line.find(|c| c != ' ').unwrap_or(0)));
    let indents: Vec<usize> = lines.by_ref().map(|(indent, _)| indent.len()).collect();
    assert_eq!(indents, [0, 0, 2, 4], "{tree}");
}

#[test]
fn json_conforms_to_its_schema() {
    let (mount, mut shell) = team();
    let pid = shell.pid();
    assert_eq!(shell.ask("spin 1 3"), "ok");
    assert_eq!(shell.ask(&format!("alloc linear {}", 5 * MIB)), "error 2");
    let all = json(&mount, &[]);
    assert_eq!(all["version"], 1);
    assert_eq!(all["devices"].as_array().map(Vec::len), Some(2));
    let process = &all["processes"][0];
    assert_eq!(
        (&process["pid"], &process["group"]),
        (&pid.into(), &"team/a".into())
    );
    assert_eq!(process["user"], "root");
    let memory = &process["memory"];
    assert_eq!(memory["current"], 6 * MIB);
    assert_eq!(memory["peak"], 6 * MIB);
    assert_eq!(
        (&memory["limit"], &memory["effective_limit"]),
        (&(30 * MIB).into(), &(10 * MIB).into())
    );
    assert_eq!(memory["events"]["group_max"], 1);
    assert_eq!(process["compute"]["stat"]["nr_launches"], 3);
    assert_eq!(process["compute"]["max"]["quota_usec"], Value::Null);
    assert_eq!(process["events"]["hook"], "ok");
    assert_eq!(process["devices"].as_array().map(Vec::len), Some(1));
    assert_eq!(process["devices"][0]["memory"]["effective_limit"], 10 * MIB);
    let groups = all["groups"].as_array().expect("a list");
    let paths: Vec<_> = groups.iter().map(|group| &group["path"]).collect();
    assert_eq!(paths, ["other", "team", "team/a"]);
    assert_eq!(groups[1]["memory"]["current"], 6 * MIB);
    assert_eq!(groups[1]["memory"]["events"]["max"], 1);

    // Keys that are there only at times.
    mount.write("team", "compute.freeze", "1");
    wait_until("the group is frozen", || {
        let all = json(&mount, &[]);
        all["groups"][1]["events"]["frozen"] == true && all["processes"][0]["events"]["frozen"] == true
    });
}

#[test]
fn suspension_shows_in_table_tree_and_json() {
    let (mount, shell) = team();
    let pid = shell.pid();
    mount.write("team/a", "memory.high", "7M");
    let all = json(&mount, &[]);
    assert_eq!(all["groups"][2]["memory"]["high"], 7 * MIB);
    assert_eq!(all["processes"][0]["memory"]["high"], Value::Null);
    let is = |all: &Value, suspend: bool, suspended: bool, group: &Value| {
        let (process, team) = (&all["processes"][0], &all["groups"][1]);
        process["suspend"] == suspend
            && process["events"]["suspended"] == suspended
            && team["suspend"] == false
            && team["events"]["nr_suspended"] == *group
    };
    assert!(is(&all, false, false, &Value::Null), "{all}");
    let columns = "--format=pid,group,suspended,high";
    suspend(&mount, pid);
    let all = json(&mount, &[]);
    assert!(is(&all, true, true, &1.into()), "{all}");
    assert_eq!(
        rows(&ls(&mount, &[columns])),
        [
            "- /other no max".to_owned(),
            "- /team no max".to_owned(),
            "- /team/a no 7M".to_owned(),
            format!("{pid} /team/a yes max"),
        ]
    );
    for arguments in [&[][..], &["--tree"]] {
        let text = ls(&mount, arguments);
        let title = text.lines().next().unwrap_or_default();
        assert!(title.contains("  SUSPENDED  "), "{text}");
        assert!(
            text.lines().any(|line| line.contains(&pid.to_string())
                && line.split_whitespace().filter(|word| *word == "yes").count() >= 1),
            "{text}"
        );
    }
    resume(&mount, pid);
    let all = json(&mount, &[]);
    assert!(is(&all, false, false, &Value::Null), "{all}");
    // A group's request.
    mount.write("team", "gcgroup.suspend", "1");
    wait_until("the group is suspended", || {
        json(&mount, &[])["groups"][1]["events"]["suspended"] == true
    });
    let words = rows(&ls(&mount, &[columns]));
    let suspended: Vec<bool> = words.iter().map(|row| row.contains(" yes ")).collect();
    assert_eq!(suspended, [false, true, true, true], "{words:?}");
    mount.write("team", "gcgroup.suspend", "0");
    wait_until("the group is resumed", || {
        json(&mount, &[])["groups"][1]["events"]["suspended"] == false
    });
}

#[test]
fn command_line_is_shown_to_its_owner_and_root_only() {
    let (mount, shell) = team();
    let pid = shell.pid();
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).expect("the process lives");
    let words: Vec<&str> = std::str::from_utf8(&bytes)
        .expect("text")
        .split_terminator('\0')
        .collect();
    let columns = ["--format", "pid,command"];
    let listed = rows(&ls(&mount, &columns));
    assert!(
        listed.contains(&format!("{pid} {}", words.join(" "))),
        "{listed:?}"
    );
    let process = &json(&mount, &[])["processes"][0];
    assert_eq!(process["host"]["command"], words.join(" "));
    assert!(
        process["host"]["memory"]
            .as_u64()
            .is_some_and(|bytes| bytes > MIB)
    );

    let mut command = Command::new("setpriv");
    command.args(["--reuid", "1000", "--regid", "1000", "--clear-groups"]);
    command
        .arg(tree_for_all(mount.root()).join("bin/gcgroupfs"))
        .env("GCGROUP_SOCKET", mount.socket());
    let output = command.args(["ls", "--json"]).output().expect("setpriv runs");
    let text = String::from_utf8(output.stdout).expect("text");
    validate(&text);
    let seen: Value = serde_json::from_str(&text).expect("JSON");
    let host = &seen["processes"][0]["host"];
    assert!(host["command"].is_null() && host["memory"].is_u64(), "{text}");
}

#[test]
fn json_filters_by_user_and_gpu() {
    let (mount, _shell) = team();
    let sizes = |arguments: &[&str]| {
        let all = json(&mount, arguments);
        ["devices", "groups", "processes"].map(|key| all[key].as_array().map_or(0, Vec::len))
    };
    assert_eq!(sizes(&[]), [2, 3, 1]);
    assert_eq!(sizes(&["--gpu", "0"]), [1, 2, 1]);
    assert_eq!(sizes(&["--gpu", "1"]), [1, 0, 0]);
    assert_eq!(sizes(&["--user", "0"]), [2, 3, 1]);
    assert_eq!(sizes(&["--user", "nobody"]), [2, 0, 0]);
}

#[test]
fn wrong_arguments_are_refused_with_reason() {
    let mount = Mount::new();
    for (arguments, status, reason) in [
        (&["--format", "pid,nothing"][..], 2, "columns are pid, user"),
        (&["--sort", "-nothing"], 2, "columns are pid, user"),
        (&["--watch", "0"], 2, "seconds from 0.1"),
        (&["--json", "--tree"], 2, "cannot be used with"),
        (&["--gpu", "7"], 1, "there is no GPU \"7\""),
    ] {
        let words = [&["ls"], arguments].concat();
        let output = mount.gcgroupfs(&words).output().expect("gcgroupfs runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {error}");
        assert!(
            error.contains(reason) && output.stdout.is_empty(),
            "{arguments:?}: {error}"
        );
    }
}

#[test]
fn watch_prints_again_until_its_output_is_closed() {
    let mount = Mount::with(Config::default().arg("--no-fuse"));
    let shell = DriverShell::start(&mount);
    let mut watch = Governed::spawn(mount.gcgroupfs(&["ls", "--json", "--watch", "0.1"]));
    for _ in 0..2 {
        let text = watch.line().expect("another line");
        let all: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(all["processes"][0]["pid"], shell.pid());
    }
    drop(watch);
    // head(1) ends after the first line, and then the command ends, too.
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "{ \"$1\" ls --watch 0.1; echo $? >&2; } | head -n 1 > /dev/null",
            "sh",
        ])
        .arg(mount.gcgroupfs(&[]).get_program())
        .env("GCGROUP_SOCKET", mount.socket())
        .stderr(Stdio::piped())
        .stdin(Stdio::null());
    let mut child = command.spawn().expect("sh starts");
    let status = wait_for("the command ends", || child.try_wait().expect("a child"));
    let output = child.wait_with_output().expect("it has ended");
    assert!(status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "0\n");
}
