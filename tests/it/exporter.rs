//! Tests `gcgroup-exporter`: the metrics, their bounds, and the checks of requests.

mod scrape;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use support::{Config, Mount, copy_program, tree_for_all, wait_for, wait_until};

use crate::driver::{Dir, DriverShell, driver_shell};

pub(crate) use self::scrape::{Exporter, command, join};

const MIB: u64 = 1 << 20;

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn number(value: u64) -> Option<f64> {
    Some(value as f64)
}

#[test]
fn metrics_show_what_the_control_files_show() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 2)
            .env("SIMGPU_MEMORY", "1G"),
    );
    let mut shell = DriverShell::start(&mount);
    let bare = DriverShell::start_bare(&mount);
    join(&mount, "team/a", &shell);
    assert_eq!(shell.ask(&format!("alloc linear {}", 96 * MIB)), "ok 0");
    let pid = shell.pid().to_string();
    mount.write(&pid, "memory.limit", &(128 * MIB).to_string());
    assert!(
        shell
            .ask(&format!("alloc linear {}", 64 * MIB))
            .starts_with("error")
    );
    for directory in [pid.as_str(), "team"] {
        mount.write(directory, "memory.high", "64M");
        assert!(shell.ask("alloc linear 4096").starts_with("ok "));
        mount.write(directory, "memory.high", "max");
    }
    Dir::of(&mount, shell.pid()).freeze();
    shell.tell("spin 1 1");
    fs::create_dir(mount.path().join("empty")).expect("a new group");
    let exporter = Exporter::start(&mount, &[]);
    let uuid = mount
        .read("", "devices")
        .split(' ')
        .nth(1)
        .expect("a UUID")
        .to_owned();
    let metrics = wait_for("the metrics show the waiting and the unmanaged process", || {
        let metrics = exporter.metrics();
        let waited = [("pid", pid.as_str()), ("resource", "compute")];
        let is_waiting = metrics.value("gcgroup_process_pressure_seconds_total", &waited) > Some(0.0);
        let unmanaged = metrics.value("gcgroup_gpu_processes", &[("gpu", "0"), ("kind", "unmanaged")]);
        (is_waiting && unmanaged == Some(1.0)).then_some(metrics)
    });
    let process = [("pid", pid.as_str()), ("user", "root"), ("group", "/team/a")];
    let on_gpu = [&process[..], &[("gpu", "0"), ("UUID", uuid.as_str())]].concat();
    let and = |label| [&process[..], &[label]].concat();
    let gpu = [("gpu", "0"), ("UUID", uuid.as_str())];
    let current = mount.number(&pid, "memory.current", "");
    for (name, labels, expected) in [
        ("gcgroup_up", &[][..], Some(1.0)),
        ("gcgroup_processes", &[], Some(1.0)),
        ("gcgroup_processes_dropped", &[], Some(0.0)),
        ("gcgroup_process_memory_bytes", &process, number(current)),
        ("gcgroup_process_memory_limit_bytes", &process, number(128 * MIB)),
        ("gcgroup_process_gpu_memory_bytes", &on_gpu, number(current)),
        (
            "gcgroup_process_gpu_memory_limit_bytes",
            &on_gpu,
            number(128 * MIB),
        ),
        ("gcgroup_process_frozen", &process, Some(1.0)),
        ("gcgroup_process_suspended", &process, Some(0.0)),
        (
            "gcgroup_process_refusals_total",
            &and(("limit", "process")),
            Some(1.0),
        ),
        (
            "gcgroup_process_refusals_total",
            &and(("limit", "group")),
            Some(0.0),
        ),
        ("gcgroup_process_high_total", &process, Some(1.0)),
        ("gcgroup_gpu_memory_total_bytes", &gpu, number(1024 * MIB)),
        ("gcgroup_gpu_memory_charged_bytes", &gpu, number(current)),
        (
            "gcgroup_group_memory_bytes",
            &[("group", "/team")],
            number(current),
        ),
        ("gcgroup_group_memory_limit_bytes", &[("group", "/team")], None),
        ("gcgroup_group_processes", &[("group", "/team/a")], Some(1.0)),
        ("gcgroup_group_high_total", &[("group", "/team")], Some(2.0)),
        ("gcgroup_group_high_total", &[("group", "/team/a")], Some(1.0)),
        ("gcgroup_group_oom_kills_total", &[("group", "/team")], Some(0.0)),
        ("gcgroup_group_refusals_total", &[("group", "/team")], Some(1.0)),
        ("gcgroup_group_refusals_total", &[("group", "/empty")], Some(0.0)),
        ("gcgroup_refusals_total", &[], Some(1.0)),
        ("gcgroup_journal_degraded", &[], Some(0.0)),
    ] {
        assert_eq!(metrics.value(name, labels), expected, "{name} {labels:?}");
    }
    let of_process = |name: &str| metrics.value(name, &process).expect("the kernel tells");
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).expect("it lives");
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<f64>().ok());
    let resident = of_process("gcgroup_process_resident_memory_bytes");
    assert!(
        (resident - pages.expect("a number") * 4096.0).abs() < 1e6,
        "{resident}, {statm}"
    );
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("a time").as_secs_f64();
    let age = now - of_process("gcgroup_process_start_time_seconds");
    let began = fs::metadata(mount.root())
        .and_then(|root| root.created())
        .expect("a time");
    let most = began.elapsed().expect("a time").as_secs_f64();
    assert!((-1.0..most + 1.0).contains(&age), "{age}, {most}");
    let cpu = of_process("gcgroup_process_cpu_seconds_total");
    assert!((0.0..1.0 + 8.0 * most).contains(&cpu), "{cpu}, {most}");
    assert_eq!(
        metrics.values("gcgroup_process_gpu_memory_bytes", &[]).len(),
        1,
        "GPU 1 is not used"
    );
    let state = exporter.state();
    assert_eq!(state["processes"][0]["memory"], current, "{state}");
    assert_eq!(state["processes"][0]["state"], "frozen");
    assert_eq!(state["gpus"][1]["governed"], 0);
    wait_until("the page shows why the process waits", || {
        exporter.state()["waits"][0]["kind"] == "frozen"
    });
    drop(bare);
}

#[test]
fn number_of_series_is_bounded() {
    let mount = Mount::new();
    let mut shells: Vec<DriverShell> = (0..3).map(|_| DriverShell::start(&mount)).collect();
    for (shell, group) in shells.iter().zip(["a", "b", "c"]) {
        join(&mount, group, shell);
    }
    assert_eq!(shells[1].ask(&format!("alloc linear {MIB}")), "ok 0");
    let exporter = Exporter::start(&mount, &["--max-processes", "1", "--max-groups", "2"]);
    let metrics = exporter.metrics();
    assert_eq!(
        metrics.labels("pid"),
        BTreeSet::from([shells[1].pid().to_string().as_str()])
    );
    assert_eq!(metrics.labels("group"), BTreeSet::from(["/a", "/b"]));
    for (name, expected) in [
        ("gcgroup_processes", 3.0),
        ("gcgroup_processes_dropped", 2.0),
        ("gcgroup_groups_dropped", 1.0),
    ] {
        assert_eq!(metrics.value(name, &[]), Some(expected), "{name}");
    }
}

#[test]
fn exporter_outlives_the_daemon() {
    let mut mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let pid = shell.pid();
    let exporter = Exporter::start(&mount, &[]);
    assert_eq!(exporter.metrics().value("gcgroup_up", &[]), Some(1.0));
    mount.kill9();
    wait_until("the metrics show that the daemon is gone", || {
        exporter.metrics().value("gcgroup_up", &[]) == Some(0.0)
    });
    assert_eq!(exporter.metrics().value("gcgroup_processes", &[]), None);
    wait_until("the page says that there is no daemon", || {
        let state = exporter.state();
        state["error"]
            .as_str()
            .is_some_and(|error| error.starts_with("no daemon at "))
    });
    mount.restart();
    wait_until("the metrics show the new daemon and its process", || {
        exporter.metrics().value("gcgroup_processes", &[]) == Some(1.0)
    });
    Dir::of(&mount, pid).freeze();
    let state = wait_for("the events of both daemons are shown, the latest first", || {
        let state = exporter.state();
        let events = state["events"].as_array().expect("events").clone();
        let mine = events.iter().filter(|event| event["pid"] == pid);
        let kinds: Vec<_> = mine.map(|event| event["what"].clone()).collect();
        let at = |what: &str| kinds.iter().rposition(|kind| kind == what);
        (at("frozen")? < at("joined")?).then_some(state)
    });
    assert_eq!(state["error"], serde_json::Value::Null);
}

#[test]
fn another_host_name_is_rejected() {
    let mount = Mount::new();
    let exporter = Exporter::start(&mount, &["--host", "gpu.example"]);
    for (host, expected) in [
        ("localhost", 200),
        ("gpu.example", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
    ] {
        for path in ["", "metrics", "state.json"] {
            let answer = exporter.ask(path, &["--header", &format!("Host: {host}")]);
            assert_eq!(answer.status, expected, "{host} {path}");
        }
    }
    let page = exporter.ask("", &[]);
    for header in [
        "content-security-policy: default-src 'none'; script-src 'self';",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
    ] {
        assert!(page.header.contains(header), "{}", page.header);
    }
    for (accept, expected) in [
        (
            "application/openmetrics-text",
            "application/openmetrics-text; version=1.0.0",
        ),
        ("*/*", "text/plain; version=0.0.4"),
    ] {
        let accept = format!("Accept: {accept}");
        let metrics = exporter.ask("metrics", &["--header", &accept]).header;
        assert!(
            metrics.contains(&format!("content-type: {expected}")),
            "{metrics}"
        );
    }
    for (path, arguments, expected) in [
        ("nothing", &[][..], 404),
        ("metrics", &["--request", "POST"], 405),
        ("freeze", &[], 405),
        ("%2e%2e/etc/passwd", &[], 404),
    ] {
        assert_eq!(exporter.ask(path, arguments).status, expected, "{path}");
    }
}

#[test]
fn only_the_token_allows_freezing() {
    const TOKEN: &str = "0123456789abcdef";
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let pid = shell.pid();
    let file = mount.root().join("token");
    fs::write(&file, format!("{TOKEN}\n")).expect("the file can be written");
    let file = file.to_str().expect("UTF-8");
    let exit = |mode: u32| {
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).expect("the mode can be set");
        let mut command = command(&mount);
        command.args(["--listen", "127.0.0.1:0", "--token-file", file]);
        command
    };
    let refused = exit(0o644).output().expect("the exporter starts");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let exporter = Exporter::spawn(exit(0o600));
    let without = Exporter::start(&mount, &[]);
    let body = format!(r#"{{"path":"{pid}","frozen":true}}"#);
    let post = |exporter: &Exporter, token: &str, body: &str| {
        let header = format!("Authorization: Bearer {token}");
        exporter
            .ask("freeze", &["--header", &header, "--data", body])
            .status
    };
    assert_eq!(post(&without, TOKEN, &body), 403);
    assert_eq!(post(&exporter, "0123456789abcdeF", &body), 401);
    assert_eq!(post(&exporter, "", &body), 401);
    assert_eq!(post(&exporter, TOKEN, "nonsense"), 400);
    assert_eq!(post(&exporter, TOKEN, &"x".repeat(5000)), 400);
    assert_eq!(post(&exporter, TOKEN, r#"{"path":"nowhere","frozen":true}"#), 409);
    assert_eq!(Dir::of(&mount, pid).number("compute.freeze"), 0);
    assert_eq!(post(&exporter, TOKEN, &body), 200);
    assert_eq!(Dir::of(&mount, pid).number("compute.freeze"), 1);
    assert_eq!(exporter.state()["writable"], true);
    assert_eq!(without.state()["writable"], false);
    assert_eq!(post(&exporter, TOKEN, &body.replace("true", "false")), 200);
    assert_eq!(Dir::of(&mount, pid).number("compute.freeze"), 0);
}

#[test]
fn names_that_others_choose_are_escaped() {
    let mount = Mount::new();
    let comm = "\"},\\\n<i>{a=";
    let program = mount.root().join(comm);
    copy_program(&driver_shell(), &program);
    let shell = DriverShell::spawn(mount.command(&program));
    let group = "x\"y\\z";
    join(&mount, group, &shell);
    let exporter = Exporter::start(&mount, &[]);
    let metrics = exporter.metrics();
    let labels = [("comm", comm), ("group", &format!("/{group}"))];
    assert_eq!(metrics.value("gcgroup_process_frozen", &labels), Some(0.0));
    assert_eq!(exporter.state()["processes"][0]["comm"], comm);
}

#[test]
fn unprivileged_exporter_shows_all_processes() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let mut command = Command::new(tree_for_all(mount.root()).join("bin/gcgroup-exporter"));
    command.arg("--socket").arg(mount.socket()).uid(65534).gid(65534);
    let socket = mount.root().join("sim/exporter.sock");
    let listen = format!("unix:{}", socket.display());
    command.args(["--listen", &listen]);
    let mut exporter = Exporter::spawn(command);
    let pid = shell.pid().to_string();
    assert_eq!(
        exporter
            .metrics()
            .value("gcgroup_process_frozen", &[("pid", &pid)]),
        Some(0.0)
    );
    exporter.program.signal(nix::sys::signal::Signal::SIGKILL);
    exporter.program.wait();
    // The socket that the killed one has left does not prevent another.
    let mut next = self::command(&mount);
    next.args(["--listen", &listen]);
    assert_eq!(
        Exporter::spawn(next).metrics().value("gcgroup_up", &[]),
        Some(1.0)
    );
}

#[test]
fn textfile_is_replaced_as_a_whole() {
    let mut mount = Mount::new();
    let directory = mount.root().join("textfiles");
    fs::create_dir(&directory).expect("the directory can be made");
    let file = directory.join("gcgroup.prom");
    let write = |mount: &Mount, file: &Path| {
        let mut command = command(mount);
        command
            .arg("--textfile")
            .arg(file)
            .output()
            .expect("the exporter starts")
    };
    let text = || fs::read_to_string(&file).expect("the file is there");
    wait_until("the file shows a sample of the GPU", || {
        let output = write(&mount, &file);
        assert!(output.status.success(), "{output:?}");
        text().contains("\ngcgroup_gpu_memory_used_bytes{")
    });
    assert!(text().contains("\ngcgroup_up 1\n"), "{}", text());
    assert!(
        text().contains("\n# TYPE gcgroup_pressure_seconds_total counter\n"),
        "{}",
        text()
    );
    let mode = fs::metadata(&file)
        .expect("the file is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o644);
    mount.stop();
    assert!(write(&mount, &file).status.success());
    assert_eq!(text().lines().last(), Some("gcgroup_up 0"));
    assert_eq!(
        fs::read_dir(&directory).expect("the directory is there").count(),
        1
    );
    let output = write(&mount, &directory.join("missing/gcgroup.prom"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for arguments in [
        &["--textfile", "f", "--listen", "127.0.0.1:0"][..],
        &["--max-groups", "x"],
    ] {
        let output = command(&mount)
            .args(arguments)
            .output()
            .expect("the exporter starts");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

#[test]
fn silent_connections_do_not_hold_up_others() {
    let mount = Mount::new();
    let exporter = Exporter::start(&mount, &[]);
    // One fewer than a client may have.
    let silent: Vec<_> = (0..15)
        .map(|_| std::net::TcpStream::connect(exporter.address()).expect("the exporter accepts"))
        .collect();
    assert_eq!(exporter.metrics().value("gcgroup_up", &[]), Some(1.0));
    drop(silent);
}
