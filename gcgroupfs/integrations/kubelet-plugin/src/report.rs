//! Report for people and the exporter: names of pods and containers, and containers that were
//! started without the devices that they ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::cards::{Claim, Resource};
use crate::kubelet::Pod;

/// Names of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct Names {
    namespace: String,
    name: String,
    /// Names of containers by their ids.
    containers: BTreeMap<String, String>,
}

/// The report, as it is written for gcgroup-exporter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct Content {
    /// Pods by their UIDs.
    pods: BTreeMap<String, Names>,
    /// Containers without devices, as NAMESPACE/POD/CONTAINER.
    without_devices: BTreeSet<String>,
    /// Whether the daemon has been seen to have no rule for pods.
    is_without_rule: bool,
}

/// The report, and what was last logged and written of it.
#[derive(Debug, Default)]
pub(crate) struct Report {
    content: Content,
    written: Option<Content>,
    problems: BTreeSet<String>,
}

impl Report {
    /// Takes the pods and what the kubelet has stored. Logs containers that are newly without devices.
    pub(crate) fn update<'a>(&mut self, pods: impl Iterator<Item = &'a Pod>, stored: &[Claim]) {
        let is_without_rule = self.content.is_without_rule;
        let content = Content {
            is_without_rule,
            ..content(pods, stored)
        };
        for container in content.without_devices.difference(&self.content.without_devices) {
            eprintln!(
                "gcgroup-kubelet-plugin: {container} was started without the devices that it asks for: \
                 restart its pod"
            );
        }
        self.content = content;
    }

    /// Notes that the daemon has no rule for pods.
    pub(crate) fn note_missing_rule(&mut self) {
        self.content.is_without_rule = true;
    }

    /// Logs problems that were not there at the last call.
    pub(crate) fn log(&mut self, problems: Vec<String>) {
        let problems: BTreeSet<String> = problems.into_iter().collect();
        for problem in problems.difference(&self.problems) {
            eprintln!("gcgroup-kubelet-plugin: {problem}");
        }
        self.problems = problems;
    }

    /// Writes the report by rename, if it has changed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&mut self, file: &Path) -> anyhow::Result<()> {
        if self.written.as_ref() == Some(&self.content) {
            return Ok(());
        }
        let fresh = file.with_extension("new");
        let text = serde_json::to_vec(&self.content)?;
        fs::write(&fresh, text)
            .and_then(|()| fs::rename(&fresh, file))
            .with_context(|| format!("cannot write {}", file.display()))?;
        self.written = Some(self.content.clone());
        Ok(())
    }
}

fn content<'a>(pods: impl Iterator<Item = &'a Pod>, stored: &[Claim]) -> Content {
    let mut content = Content::default();
    for pod in pods.filter(|pod| pod.is_active()) {
        let started: BTreeMap<&str, &str> = pod.started().map(|(id, name)| (name, id)).collect();
        let names = Names {
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            containers: pod
                .started()
                .map(|(id, name)| (id.to_owned(), name.to_owned()))
                .collect(),
        };
        content.pods.insert(pod.uid().to_owned(), names);
        for resource in Resource::ALL {
            for container in pod.asking(resource) {
                let has_devices = stored.iter().any(|claim| {
                    claim.pod.as_deref() == Some(pod.uid())
                        && claim.container == container
                        && claim.resource == resource
                });
                if started.contains_key(container) && !has_devices {
                    let path = format!("{}/{}/{container}", pod.namespace(), pod.name());
                    content.without_devices.insert(path);
                }
            }
        }
    }
    content
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kubelet::tests::pod;

    fn claim(uid: &str) -> Claim {
        Claim {
            pod: Some(uid.to_owned()),
            container: "c".to_owned(),
            resource: Resource::Memory,
            ids: BTreeSet::new(),
        }
    }

    #[test]
    fn started_container_without_stored_devices_is_reported() {
        let pods = [
            pod("u1", "has", json!({}), "Running"),
            pod("u2", "hasnot", json!({}), "Running"),
            pod("u3", "ended", json!({}), "Failed"),
        ];
        let content = content(pods.iter(), &[claim("u1")]);
        let without: Vec<_> = content.without_devices.iter().map(String::as_str).collect();
        assert_eq!(without, ["team/hasnot/c"]);
        assert_eq!(content.pods.len(), 2);
        assert_eq!(content.pods["u1"].containers["0123"], "c");
    }

    #[test]
    fn report_is_written_when_it_changes() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pods.json");
        let mut report = Report::default();
        report.update([pod("u", "p", json!({}), "Running")].iter(), &[claim("u")]);
        report.write(&file).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(r#""u":{"namespace":"team","name":"p""#), "{text}");
        fs::remove_file(&file).unwrap();
        report.write(&file).unwrap();
        assert!(!file.exists(), "it has not changed");
        assert!(
            Report::default()
                .write(&directory.path().join("no/pods.json"))
                .is_err()
        );
    }
}
