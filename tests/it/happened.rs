//! Tests `gcgroupfs events`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use serde_json::Value;
use support::{Config, Governed, Mount, wait_until};

use crate::driver::DriverShell;
use crate::rules::BOB;

/// Returns the events of a process or group, as root or another user sees them.
#[track_caller]
fn events(mount: &Mount, uid: u32, name: &str) -> Vec<Value> {
    let output = mount.gcgroupfs_of(uid, &["events", "--json", name]).output();
    let output = output.expect("the command starts");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let parse = |line| serde_json::from_str(line).expect("JSON");
    text.lines().map(parse).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["what"].as_str()).collect()
}

#[test]
fn changes_of_a_group_are_listed_whatever_its_name() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    for name in ["two words", "a=b", "\u{e9}t\u{e9}", "a\u{1b}[31m", "a\\040b"] {
        fs::create_dir(mount.path().join(name)).expect("a group");
        mount.write(name, "memory.limit", "4096");
        for uid in [0, BOB] {
            let all = events(&mount, uid, name);
            assert_eq!(kinds(&all), ["made", "set"], "{name:?}: {all:?}");
            assert!(all.iter().all(|event| event["group"] == name), "{all:?}");
        }
    }
}

#[test]
fn events_of_a_process_are_listed_in_order_with_their_texts() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    fs::create_dir(mount.path().join("team")).expect("a group");
    let mut shell = DriverShell::start(&mount);
    let other = DriverShell::start(&mount);
    let pid = shell.pid().to_string();
    mount.write("team", "gcgroup.procs", &pid);
    mount.write(&pid, "memory.limit", "4096");
    assert!(shell.ask("alloc linear 8192").starts_with("error"));
    wait_until("the refusal is listed", || {
        kinds(&events(&mount, 0, &pid)).contains(&"refused")
    });
    mount.write(&pid, "compute.freeze", "1");
    wait_until("the freeze is listed", || {
        kinds(&events(&mount, 0, &pid)).contains(&"frozen")
    });
    mount.write(&pid, "compute.freeze", "0");
    wait_until("the thaw is listed", || {
        kinds(&events(&mount, 0, &pid)).contains(&"thawed")
    });
    mount.write(&pid, "gcgroup.kill", "1");
    wait_until("the end is listed", || {
        kinds(&events(&mount, 0, &pid)).contains(&"left")
    });
    let all = events(&mount, 0, &pid);
    let mut found = kinds(&all);
    // A process is frozen and thawed on each device and as a whole.
    found.dedup();
    found.retain(|kind| *kind != "access");
    let (before, after): (Vec<&str>, Vec<&str>) = (found[..2].to_vec(), found[2..].to_vec());
    assert_eq!(before, ["joined", "set"]);
    for kind in ["refused", "frozen", "thawed", "killed", "left"] {
        assert!(after.contains(&kind), "{found:?}");
    }
    let find = |kind: &str| {
        all.iter()
            .find(|event| event["what"] == kind)
            .expect("it is there")
    };
    let text = |kind| find(kind)["text"].as_str().unwrap_or_default().to_owned();
    assert!(
        text("set").starts_with(&format!("/{pid}/memory.limit: \"max\" -> \"4096\", by process ")),
        "{}",
        text("set")
    );
    assert_eq!(
        text("refused"),
        "1 allocations refused, lowest limit 4096 bytes, in use 0 bytes"
    );
    assert!(
        text("killed").starts_with("by gcgroup.kill, written by "),
        "{}",
        text("killed")
    );
    assert!(text("left").contains(" how=signal:9"), "{}", text("left"));
    assert_eq!(find("refused")["group"], "team");
    let of_group = events(&mount, 0, "team");
    assert_eq!(kinds(&of_group)[..2], ["made", "set"], "{of_group:?}");
    assert!(!of_group.iter().any(|event| event["pid"] == other.pid()));
    let unknown = mount
        .gcgroupfs(&["events", "nope"])
        .output()
        .expect("the command starts");
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert_eq!(unknown.status.code(), Some(1), "{said}");
    assert!(said.contains("nope: no such process or group"), "{said}");
    // Of a group that another user could not find, neither its name nor what happens there.
    fs::set_permissions(mount.path(), Permissions::from_mode(0o700)).expect("root may");
    assert_eq!(events(&mount, BOB, "team"), Vec::<Value>::new());
    let refused = events(&mount, BOB, &pid)
        .into_iter()
        .find(|event| event["what"] == "refused");
    assert_eq!(refused.expect("the kind is shown").get("text"), None);
}

#[test]
fn followed_events_go_on_after_a_restart() {
    let mut mount = Mount::new();
    let first = DriverShell::start(&mount);
    let mut follower = Governed::spawn(mount.gcgroupfs(&["events", "--follow"]));
    let wait_for = |follower: &mut Governed, text: String| {
        while !follower.expect("").contains(&text) {}
    };
    let joined = |shell: &DriverShell| format!(" joined {} ", shell.pid());
    wait_for(&mut follower, joined(&first));
    mount.kill9();
    mount.restart();
    let second = DriverShell::start(&mount);
    wait_for(&mut follower, joined(&second));
    let pid = second.pid();
    second.quit();
    wait_for(&mut follower, format!(" left {pid} "));
}

#[test]
fn following_ends_when_nobody_reads_any_more() {
    let mount = Mount::new();
    let mut follow = mount.gcgroupfs(&["events", "--follow"]);
    let mut follower = follow.stdout(Stdio::piped()).spawn().expect("the command starts");
    drop(follower.stdout.take());
    let mut ended = None;
    wait_until("the command has ended", || {
        ended = follower.try_wait().expect("a child");
        ended.is_some()
    });
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}
