//! A running exporter, and the metrics that it serves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use support::{Governed, Mount, artifacts, wait_for};

use crate::driver::DriverShell;

/// Running exporter.
#[derive(Debug)]
pub(crate) struct Exporter {
    pub(super) program: Governed,
    /// URL that ends in a slash, or `unix:PATH`.
    url: String,
}

/// Answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(super) status: u32,
    /// Header, in lower case.
    pub(super) header: String,
    pub(crate) body: String,
}

impl Exporter {
    /// Starts an exporter of the mount's daemon at a free port, and waits until it listens.
    #[track_caller]
    pub(crate) fn start(mount: &Mount, arguments: &[&str]) -> Self {
        let mut command = command(mount);
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        Self::spawn(command)
    }

    #[track_caller]
    pub(super) fn spawn(command: Command) -> Self {
        let mut program = Governed::spawn(command);
        let url = wait_for("the exporter listens", || {
            let stderr = program.stderr();
            let url = stderr
                .lines()
                .find_map(|line| line.strip_prefix("gcgroup-exporter: ready: "));
            assert!(url.is_some() || program.is_running(), "{stderr}");
            url.map(str::to_owned)
        });
        Self { program, url }
    }

    /// Returns `ADDRESS:PORT`.
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://").trim_end_matches('/')
    }

    /// Requests a path with additional arguments of curl.
    #[track_caller]
    pub(crate) fn ask(&self, path: &str, arguments: &[&str]) -> Answer {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--show-error",
            "--include",
            "--noproxy",
            "*",
            "--max-time",
            "60",
        ]);
        match self.url.strip_prefix("unix:") {
            Some(socket) => curl.args(["--unix-socket", socket, &format!("http://localhost/{path}")]),
            None => curl.arg(format!("{}{path}", self.url)),
        };
        let output = curl.args(arguments).output().expect("curl starts");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let words = String::from_utf8_lossy(&output.stderr);
        let (header, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no answer: {words}{text}"));
        let status = header.split(' ').nth(1).and_then(|status| status.parse().ok());
        Answer {
            status: status.expect("a status"),
            header: header.to_lowercase(),
            body: body.to_owned(),
        }
    }

    /// Returns the metrics.
    #[track_caller]
    pub(crate) fn metrics(&self) -> Metrics {
        let answer = self.ask("metrics", &["--header", "Accept: application/openmetrics-text"]);
        assert_eq!(answer.status, 200, "{answer:?}");
        Metrics::parse(&answer.body)
    }

    /// Returns the state that the page shows.
    #[track_caller]
    pub(crate) fn state(&self) -> serde_json::Value {
        serde_json::from_str(&self.ask("state.json", &[]).body).expect("JSON")
    }
}

/// Returns the command of an exporter of the mount's daemon, without a place to listen.
pub(crate) fn command(mount: &Mount) -> Command {
    let mut command = Command::new(artifacts().dist().join("bin/gcgroup-exporter"));
    command.arg("--socket").arg(mount.socket());
    command
}

/// Samples: name, labels and value.
#[derive(Debug)]
pub(crate) struct Metrics(Vec<(String, BTreeMap<String, String>, f64)>);

impl Metrics {
    #[track_caller]
    fn parse(text: &str) -> Self {
        assert!(text.ends_with("# EOF\n"), "{text}");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self(
            lines
                .map(|line| sample(line).unwrap_or_else(|| panic!("{line}")))
                .collect(),
        )
    }

    /// Returns the values of the samples that have these labels.
    pub(super) fn values(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        let fits = |of: &BTreeMap<String, String>| {
            labels
                .iter()
                .all(|(name, value)| of.get(*name).map_or("", String::as_str) == *value)
        };
        let found = self.0.iter().filter(|(of, has, _)| of == name && fits(has));
        found.map(|(_, _, value)| *value).collect()
    }

    /// Returns the value of the only sample with these labels; `None` if there is none.
    #[track_caller]
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let values = self.values(name, labels);
        assert!(values.len() <= 1, "{name} {labels:?}: {values:?}");
        values.first().copied()
    }

    /// Returns the different values of a label.
    pub(super) fn labels(&self, label: &str) -> BTreeSet<&str> {
        self.0
            .iter()
            .filter_map(|(_, labels, _)| labels.get(label))
            .map(String::as_str)
            .collect()
    }
}

/// Parses `NAME{LABEL="VALUE",...} VALUE`.
fn sample(line: &str) -> Option<(String, BTreeMap<String, String>, f64)> {
    let (head, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let (name, mut rest) = match head.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}')?),
        None => (head, ""),
    };
    let mut labels = BTreeMap::new();
    while !rest.is_empty() {
        let (label, quoted) = rest.split_once("=\"")?;
        let mut text = String::new();
        let mut chars = quoted.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => text.push('\n'),
                    other => text.push(other),
                },
                (_, other) => text.push(other),
            }
        };
        labels.insert(label.to_owned(), text);
        rest = quoted.get(end + 1..)?.trim_start_matches(',');
    }
    Some((name.to_owned(), labels, value))
}

/// Moves a process into a group, which is made.
pub(crate) fn join(mount: &Mount, group: &str, shell: &DriverShell) {
    fs::create_dir_all(mount.path().join(group)).expect("the group can be made");
    mount.write(group, "gcgroup.procs", &shell.pid().to_string());
}
