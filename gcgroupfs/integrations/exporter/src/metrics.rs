//! Encodes a snapshot as OpenMetrics text.
//!
//! Labels are those of NVIDIA's DCGM exporter where it has them and they suit Prometheus: `gpu`, `UUID`,
//! `pod`, `container`.

mod families;

use std::fmt;

use gcgroup_client::node::{Files, State, Usage};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use self::families::{FAMILIES, Kind, On};
use crate::snapshot::{Process, Snapshot};

/// Labels of a sample.
type Labels = Vec<(&'static str, String)>;

/// The rows of a snapshot, ready to be encoded; none: the daemon does not answer.
#[derive(Debug)]
struct Rows {
    rows: Option<Vec<(On, Labels, Files)>>,
}

/// Returns the snapshot as OpenMetrics text; without one, only that the daemon does not answer.
///
/// # Errors
/// None is known.
pub(crate) fn open_metrics(snapshot: Option<&Snapshot>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("gcgroup");
    registry.register_collector(Box::new(Rows {
        rows: snapshot.map(rows),
    }));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

/// Returns OpenMetrics text in the older format of Prometheus, which node_exporter reads from files.
pub(crate) fn prometheus_text(open_metrics: &str) -> String {
    let mut counter = "";
    let mut out = String::new();
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), Some(rest)) => {
                // HELP precedes TYPE, and only TYPE tells counters, whose samples end in _total.
                let type_line = format!("# TYPE {name} counter\n");
                let is_counter = counter == name || (what == "HELP" && open_metrics.contains(&type_line));
                counter = if is_counter { name } else { "" };
                let ending = if is_counter { "_total" } else { "" };
                out.push_str(&format!("# {what} {name}{ending} {rest}\n"));
            }
            (Some("#"), ..) => {}
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

/// Returns the rows of a snapshot. Its own numbers get names in parentheses beside the control files.
fn rows(snapshot: &Snapshot) -> Vec<(On, Labels, Files)> {
    let mut root = snapshot.root.clone();
    for (name, value) in [
        ("(processes)", snapshot.nr_processes.to_string()),
        ("(processes dropped)", snapshot.processes_dropped.to_string()),
        ("(groups dropped)", snapshot.groups_dropped.to_string()),
        (
            "(without devices)",
            snapshot.pods.nr_without_devices().to_string(),
        ),
        (
            "(without rule)",
            u8::from(snapshot.pods.is_without_rule()).to_string(),
        ),
        ("(read)", snapshot.took.as_micros().to_string()),
    ] {
        root.insert(name, &value);
    }
    let mut rows = vec![(On::Node, Vec::new(), root)];
    for gpu in &snapshot.gpus {
        let labels = vec![
            ("gpu", gpu.index.to_string()),
            ("UUID", gpu.uuid.clone()),
            ("model", gpu.name.clone()),
        ];
        rows.push((On::Gpu, labels, gpu.files.clone()));
    }
    for process in &snapshot.processes {
        let labels = process_labels(process);
        for on in &process.of.devices {
            let gpu = snapshot.gpus.iter().find(|gpu| gpu.index == on.index);
            let uuid = gpu.map_or_else(String::new, |gpu| gpu.uuid.clone());
            let mut labels = labels.clone();
            labels.extend([("gpu", on.index.to_string()), ("UUID", uuid)]);
            rows.push((On::ProcessGpu, labels, files(&on.usage, process.activity.state)));
        }
        let mut files = files(&process.of.usage, process.activity.state);
        if let Some(host) = &process.host {
            files.insert("(cpu)", &host.cpu_usec.to_string());
            files.insert("(resident)", &host.memory.to_string());
            files.insert("(start)", &format!("{:.0}", host.start * 1000.0));
        }
        rows.push((On::Process, labels, files));
    }
    for group in &snapshot.groups {
        let mut files = files(&group.of.usage, group.activity.state);
        files.insert("(processes)", &group.nr_processes.to_string());
        let mut labels = vec![("group", format!("/{}", group.of.path))];
        if let Some(pod) = snapshot.pods.of_group(&group.of.path) {
            labels.extend([("namespace", pod.namespace.clone()), ("pod", pod.name.clone())]);
        }
        rows.push((On::Group, labels, files));
    }
    rows
}

/// Returns the control files of a process or group, and with names in parentheses what follows from several.
fn files(usage: &Usage, state: State) -> Files {
    let mut files = usage.files.clone();
    files.insert("(frozen)", &u8::from(state.is_frozen()).to_string());
    files.insert("(suspended)", &u8::from(state.is_suspended()).to_string());
    if let Some(limit) = usage.memory.effective_limit {
        files.insert("(limit)", &limit.to_string());
    }
    files
}

/// Returns the labels of a process. Those that do not apply are left out, which Prometheus takes as empty.
fn process_labels(process: &Process) -> Labels {
    let group = process.of.group.as_ref().map(|path| format!("/{path}"));
    let labels = vec![
        ("pid", process.of.pid.to_string()),
        ("comm", process.of.comm.clone()),
        ("user", process.of.user.clone()),
        ("group", group.unwrap_or_default()),
        ("container", process.owner.container.clone()),
        ("namespace", process.owner.namespace.clone()),
        ("pod", process.owner.pod.clone()),
        ("job", process.owner.job.clone()),
    ];
    labels
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

impl Collector for Rows {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let up = ConstGauge::new(i64::from(self.rows.is_some()));
        up.encode(encoder.encode_descriptor("up", "1 if the daemon answers", None, MetricType::Gauge)?)?;
        let Some(rows) = &self.rows else {
            return Ok(());
        };
        for family in FAMILIES {
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut metric = encoder.encode_descriptor(family.name, family.help, None, kind)?;
            for (_, labels, files) in rows.iter().filter(|(on, ..)| *on == family.on) {
                for (label, value) in family.samples {
                    let Some(value) = value(files) else {
                        continue;
                    };
                    let mut labels = labels.clone();
                    labels.extend(label.map(|(name, value)| (name, value.to_owned())));
                    let sample = metric.encode_family(&labels)?;
                    match family.kind {
                        Kind::Counter => ConstCounter::new(value).encode(sample)?,
                        Kind::Gauge => ConstGauge::new(value).encode(sample)?,
                    }
                }
            }
        }
        Ok(())
    }
}
