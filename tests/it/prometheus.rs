//! Tests the metrics, the alert rules and the dashboard with Debian's Prometheus, which scrapes the exporter.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Config, Governed, Mount, repository, wait_for, wait_until};

use crate::cgroup::KernelCgroup;
use crate::driver::{Dir, DriverShell};
use crate::exporter::{Exporter, command, join};

const MIB: u64 = 1 << 20;

/// UID of a pod.
const POD: &str = "6d1c2ff8-6e2f-4f0b-9d3a-0a1b2c3d4e5f";

/// Prometheus with its own data directory, at a free port.
#[derive(Debug)]
struct Prometheus {
    program: Governed,
    url: String,
}

impl Prometheus {
    /// Starts Prometheus, which scrapes addresses every 5 s and evaluates the alert rules each second.
    fn start(mount: &Mount, targets: &[&str]) -> Self {
        let directory = mount.root().join("prometheus");
        fs::create_dir(&directory).expect("the directory can be made");
        let configuration = directory.join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 5s, scrape_timeout: 5s, evaluation_interval: 1s}}\n\
             rule_files: ['{}']\n\
             scrape_configs: [{{job_name: gcgroup, static_configs: [{{targets: {targets:?}}}]}}]\n",
            alerts(),
        );
        fs::write(&configuration, text).expect("the file can be written");
        check(
            Command::new("promtool")
                .args(["check", "config"])
                .arg(&configuration),
        );
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.join("data").display()
            ))
            .args(["--web.listen-address=127.0.0.1:0", "--log.format=logfmt"]);
        let mut program = Governed::spawn(command);
        let address = wait_for("Prometheus listens", || {
            let stderr = program.stderr();
            let line = stderr.lines().find(|line| line.contains("msg=\"Listening on\""));
            assert!(line.is_some() || program.is_running(), "{stderr}");
            Some(line?.split_once(" address=")?.1.trim().to_owned())
        });
        let url = format!("http://{address}");
        Self { program, url }
    }

    /// Returns the result of a request to the API with additional arguments of curl; `None` before Prometheus
    /// is ready.
    fn ask(&self, path: &str, arguments: &[&str]) -> Option<Value> {
        let output = Command::new("curl")
            .args(["--silent", "--noproxy", "*", "--max-time", "60"])
            .args(arguments)
            .arg(format!("{}/api/v1/{path}", self.url))
            .output()
            .expect("curl starts");
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        (answer["status"] == "success").then(|| answer["data"].clone())
    }

    /// Returns the labels of the first series that an expression gives.
    fn labels(&self, expression: &str) -> Option<Value> {
        let query = format!("query={expression}");
        let data = self.ask("query", &["--data-urlencode", &query])?;
        data["result"].get(0).map(|series| series["metric"].clone())
    }

    /// Returns what promtool prints for an expression: a line for each series.
    ///
    /// # Panics
    /// The expression is invalid.
    #[track_caller]
    fn query(&self, expression: &str) -> String {
        check(
            Command::new("promtool")
                .args(["query", "instant", &self.url, expression])
                .env("NO_PROXY", "127.0.0.1"),
        )
    }

    /// Waits until promtool prints a series for an expression. A scrape that fails on a busy machine ends
    /// all series until the next one.
    #[track_caller]
    fn wait_for_series(&self, expression: &str) {
        wait_until(&format!("there is a series for {expression}"), || {
            !self.query(expression).trim().is_empty()
        });
    }

    /// Returns each rule: name to state and expression.
    fn rules(&self) -> BTreeMap<String, Value> {
        let answer = self.ask("rules", &[]).unwrap_or_default();
        let rules = answer["groups"][0]["rules"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let name = |rule: &Value| rule["name"].as_str().unwrap_or_default().to_owned();
        rules.into_iter().map(|rule| (name(&rule), rule)).collect()
    }
}

/// Serves a scrape that was recorded of DCGM's exporter, with the UUID of a GPU in place of the real one's.
/// Returns the server and its address.
fn dcgm(mount: &Mount, uuid: &str) -> (Governed, String) {
    let recorded = fs::read_to_string(repository().join("tests/data/dcgm-exporter.txt")).expect("a file");
    let directory = mount.root().join("dcgm");
    fs::create_dir(&directory).expect("the directory can be made");
    fs::write(directory.join("metrics"), recorded.replace("@UUID@", uuid)).expect("the file can be written");
    let mut command = Command::new("python3");
    command
        .args(["-um", "http.server", "--bind", "127.0.0.1", "0", "--directory"])
        .arg(&directory);
    let mut server = Governed::spawn(command);
    let line = server.line().expect("the server says where it listens");
    let mut words = line.split(' ').skip_while(|word| *word != "port");
    let port = words.nth(1).expect("a port");
    let address = format!("127.0.0.1:{port}");
    (server, address)
}

fn alerts() -> String {
    let path = repository().join("gcgroupfs/integrations/exporter/alerts.yml");
    path.canonicalize()
        .expect("the rules are there")
        .display()
        .to_string()
}

/// Runs a command, and returns its output.
///
/// # Panics
/// The command fails.
#[track_caller]
fn check(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; run scripts/setup-debian.sh"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}{words}",
        output.status
    );
    text
}

/// Returns the names of the metrics in an expression.
fn names(expression: &str) -> Vec<&str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("gcgroup_")).collect()
}

#[test]
fn alerts_and_dashboard_match_what_prometheus_scrapes() {
    let mount = Mount::with(Config::default().env("SIMGPU_MEMORY", "1G"));
    // As in a pod that the plugin of Kubernetes has named.
    let cgroup = KernelCgroup::new(&format!("kubepods/pod{POD}")).expect("a hierarchy of cgroups");
    let pods = mount.root().join("pods.json");
    let named = format!(
        r#"{{"pods":{{"{POD}":{{"namespace":"n","name":"p","containers":{{}}}}}},"without_devices":[]}}"#
    );
    fs::write(&pods, named).expect("the file can be written");
    let mut shell = cgroup.start_driver_shell(&mount);
    let _bare = DriverShell::start_bare(&mount);
    join(&mount, "team", &shell);
    mount.write("team", "memory.limit", &(64 * MIB).to_string());
    assert_eq!(shell.ask(&format!("alloc linear {}", 63 * MIB)), "ok 0");
    mount.write(shell.pid(), "memory.limit", &(64 * MIB).to_string());
    let exporter = Exporter::start(&mount, &["--pods", &pods.display().to_string()]);
    let devices = mount.read("", "devices");
    let uuid = devices.split_whitespace().nth(1).expect("a UUID");
    let (_server, dcgm) = dcgm(&mount, uuid);
    let mut prometheus = Prometheus::start(&mount, &[exporter.address(), &dcgm]);
    wait_until("Prometheus has scraped the process", || {
        prometheus.labels("gcgroup_process_frozen").is_some()
    });
    // Ends before Prometheus scrapes it, or with a counter that begins at 1.
    let mut late = DriverShell::start(&mount);
    join(&mount, "team", &late);
    assert!(
        late.ask(&format!("alloc linear {}", 8 * MIB))
            .starts_with("error")
    );
    drop(late);
    Dir::of(&mount, shell.pid()).freeze();
    shell.tell("spin 1 1");
    // Those without a `for` fire, the others are pending. GcgroupStalled would take minutes.
    let expected = [
        "GcgroupAllocationsRefused",
        "GcgroupFrozenLong",
        "GcgroupGroupNearLimit",
        "GcgroupUnmanagedProcess",
    ];
    wait_until("the alerts are raised", || {
        let rules = prometheus.rules();
        let raised = rules.iter().filter(|(_, rule)| rule["state"] != "inactive");
        let raised: Vec<&str> = raised.map(|(name, _)| name.as_str()).collect();
        expected.iter().all(|name| raised.contains(name))
    });
    let rules = prometheus.rules();
    assert_eq!(rules.len(), 10, "{rules:?}");
    for (name, rule) in &rules {
        assert_eq!(rule["health"], "ok", "{name}: {rule}");
        for metric in names(rule["query"].as_str().expect("an expression")) {
            prometheus.wait_for_series(metric);
        }
    }
    let dashboard = fs::read_to_string(repository().join("gcgroupfs/integrations/exporter/grafana.json"))
        .expect("the file is there");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let mut nr_queries = 0;
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().expect("targets") {
            let expression = target["expr"].as_str().expect("an expression");
            let filled = expression
                .replace("$instance", ".*")
                .replace("$__rate_interval", "5m");
            assert!(!filled.contains('$'), "{expression}");
            prometheus.wait_for_series(&filled);
            let legend = target["legendFormat"].as_str().expect("a legend");
            let labels = wait_for("the query has a result", || prometheus.labels(&filled));
            for label in legend
                .split("{{")
                .skip(1)
                .filter_map(|rest| rest.split("}}").next())
            {
                assert!(labels[label].is_string(), "{expression}: no label {label}");
            }
            nr_queries += 1;
        }
    }
    assert!(nr_queries > 10, "{nr_queries}");
    prometheus.program.signal(nix::sys::signal::Signal::SIGTERM);
    prometheus.program.wait();
}

#[test]
fn promtool_accepts_rules_and_metrics() {
    check(Command::new("promtool").args(["check", "rules", &alerts()]));
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    join(&mount, "team", &shell);
    let file = mount.root().join("gcgroup.prom");
    check(command(&mount).arg("--textfile").arg(&file));
    let page = mount.root().join("metrics");
    let text = Exporter::start(&mount, &[]).ask("metrics", &[]).body;
    fs::write(&page, text).expect("the file can be written");
    for file in [file, page] {
        let text = fs::File::open(&file).expect("the file is there");
        // Also complains about names and missing help.
        let said = check(
            Command::new("promtool")
                .args(["check", "metrics"])
                .stdin(Stdio::from(text)),
        );
        assert_eq!(said, "", "{file:?}");
    }
}
