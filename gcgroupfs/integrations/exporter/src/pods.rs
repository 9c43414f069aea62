//! Names of Kubernetes pods and containers, from the file that gcgroup-kubelet-plugin writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

/// Names of a pod and of its containers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Names by container id.
    containers: BTreeMap<String, String>,
}

impl Pod {
    /// Returns the name of the container whose id begins with these digits.
    pub(crate) fn container(&self, digits: &str) -> Option<&str> {
        let mut ids = self.containers.range(digits.to_owned()..);
        let (id, name) = ids.next().filter(|_| !digits.is_empty())?;
        id.starts_with(digits).then_some(name.as_str())
    }
}

/// Content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Pods {
    /// By UID.
    pods: BTreeMap<String, Pod>,
    /// Containers that were started without the devices that they ask for.
    without_devices: BTreeSet<String>,
    /// Whether the plugin has seen that the daemon has no rule for pods.
    #[serde(default)]
    is_without_rule: bool,
}

impl Pods {
    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read, or has another format.
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        let name = file.display();
        let text = fs::read(file).with_context(|| format!("cannot read {name}"))?;
        serde_json::from_slice(&text).with_context(|| format!("{name}: unknown format"))
    }

    pub(crate) fn pod(&self, uid: &str) -> Option<&Pod> {
        self.pods.get(uid)
    }

    /// Returns the pod whose processes are in a group, by the group's path.
    pub(crate) fn of_group(&self, path: &str) -> Option<&Pod> {
        self.pod(path.strip_prefix("pods/")?.split('/').next()?)
    }

    pub(crate) fn is_without_rule(&self) -> bool {
        self.is_without_rule
    }

    pub(crate) fn nr_without_devices(&self) -> usize {
        self.without_devices.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_uid_group_and_first_digits() {
        let text = r#"{"pods":{"u":{"namespace":"team","name":"p","containers":{"0123456789abcdef":"c"}}},
            "without_devices":["team/p/d"]}"#;
        let pods: Pods = serde_json::from_str(text).unwrap();
        let pod = pods.of_group("pods/u/x").unwrap();
        assert_eq!(Some(pod), pods.pod("u"));
        assert_eq!(pod.container("0123456789ab"), Some("c"));
        assert_eq!(pod.container("0123456789ac"), None);
        assert_eq!(pod.container(""), None);
        assert_eq!(pods.nr_without_devices(), 1);
        assert!(!pods.is_without_rule(), "an earlier plugin does not tell");
        let pods: Pods =
            serde_json::from_str(&text.replace("\"without", "\"is_without_rule\":true,\"without")).unwrap();
        assert!(pods.is_without_rule());
        let pods: Pods = serde_json::from_str(text).unwrap();
        assert!(pods.of_group("u").is_none() && pods.of_group("pods").is_none());
        assert!(Pods::read(Path::new("/nonexistent")).is_err());
    }
}
