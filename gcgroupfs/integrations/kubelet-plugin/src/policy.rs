//! Settings of the groups of a pod and its containers: from annotations, otherwise from the pod's
//! quality-of-service class.

use anyhow::{Context, bail, ensure};
use gcgroup_abi::NO_LIMIT;
use gcgroup_abi::size::{BYTES, parse_bytes};

use crate::kubelet::Pod;

/// Priority of pods that do not ask for one, by class: 0 is the highest, 15 the lowest.
const PRIORITIES: [(&str, u8); 3] = [("Guaranteed", 6), ("Burstable", 8), ("BestEffort", 12)];

/// Lowest priority.
const LOWEST: u8 = 15;

/// Domain of the annotations.
const DOMAIN: &str = "gcgroup.io";

/// Longest value of an annotation that is read, characters. No valid one is as long.
const LONGEST: usize = 100;

/// Control file with the limit of memory.
pub(crate) const LIMIT: &str = "memory.limit";

/// Setting of a group.
struct Row {
    /// Control file.
    file: &'static str,
    /// Name of the annotation; the control file's name is another.
    name: &'static str,
    /// Returns the value where the annotation is missing; `None`: nothing is written.
    default: fn(&Pod) -> Option<String>,
    /// Whether a container without the annotation has its pod's value.
    is_inherited: bool,
    /// Returns what is written.
    value: fn(&str, u8) -> anyhow::Result<String>,
}

/// The limit comes last: whether it can be lowered depends on the others.
const ROWS: [Row; 4] = [
    Row {
        file: "compute.priority",
        name: "priority",
        default: priority,
        is_inherited: true,
        value: permitted,
    },
    Row {
        file: "compute.max",
        name: "compute-max",
        default: |_| Some("max".to_owned()),
        is_inherited: false,
        value: |text, _| Ok(text.to_owned()),
    },
    Row {
        file: "memory.swap.max",
        name: "memory-swap-max",
        default: |_| None,
        is_inherited: false,
        value: |text, _| Ok(text.to_owned()),
    },
    Row {
        file: LIMIT,
        name: "memory-limit",
        default: |_| None,
        is_inherited: false,
        value: |text, _| bytes(text),
    },
];

/// Value for a control file of the group of a pod, or of one of its containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) container: Option<String>,
    pub(crate) file: &'static str,
    /// `None`: the group's default. An annotation that a pod may not have: the reason.
    pub(crate) value: Result<Option<String>, String>,
    /// The annotation that asks for it, and the beginning of its value.
    asked: Option<(String, String)>,
}

impl Setting {
    /// Returns the message that the setting changes nothing, for people who read the pod's events.
    pub(crate) fn refused(&self, reason: &str) -> String {
        match &self.asked {
            Some((key, value)) => format!("annotation {key}: {value:?}: {reason}"),
            None => format!("{}: {reason}", self.file),
        }
    }
}

fn priority(pod: &Pod) -> Option<String> {
    let class = PRIORITIES.iter().find(|(class, _)| *class == pod.qos_class());
    class.map(|(_, priority)| priority.to_string())
}

fn permitted(text: &str, highest: u8) -> anyhow::Result<String> {
    let priority: u8 = text.parse().context("no number")?;
    ensure!(
        (highest..=LOWEST).contains(&priority),
        "pods may have {highest} to {LOWEST}, not {priority}"
    );
    Ok(priority.to_string())
}

/// Returns a size as the daemon shows it: a number of bytes, or `max`.
fn bytes(text: &str) -> anyhow::Result<String> {
    match parse_bytes(text) {
        Ok(NO_LIMIT) => Ok("max".to_owned()),
        Ok(bytes) => Ok(bytes.to_string()),
        Err(_) => bail!("expected {BYTES}"),
    }
}

/// Returns the annotation of a pod for a setting, `gcgroup.io/NAME` for the pod, `NAME.gcgroup.io/CONTAINER`
/// for a container, and the beginning of its value: [`LONGEST`] characters, or one more.
fn asked(pod: &Pod, container: Option<&str>, row: &Row) -> Option<(String, String)> {
    [row.name, row.file].into_iter().find_map(|name| {
        let key = match container {
            None => format!("{DOMAIN}/{name}"),
            Some(container) => format!("{name}.{DOMAIN}/{container}"),
        };
        let value = pod.annotation(&key)?.trim();
        Some((key, value.chars().take(LONGEST + 1).collect()))
    })
}

/// Returns the settings of the groups of a pod and its containers. The daemon checks what is not checked
/// here; no priority may be higher than `highest`.
pub(crate) fn settings<'a>(
    pod: &Pod,
    containers: impl Iterator<Item = &'a String>,
    highest: u8,
) -> Vec<Setting> {
    let mut settings: Vec<Setting> = Vec::new();
    for container in std::iter::once(None).chain(containers.map(Some)) {
        for (number, row) in ROWS.iter().enumerate() {
            let asked = asked(pod, container.map(String::as_str), row);
            let own = settings
                .get(number)
                .filter(|_| container.is_some() && row.is_inherited);
            let value = match (&asked, own) {
                (Some((_, text)), _) if text.chars().count() > LONGEST => {
                    Err(format!("longer than {LONGEST} characters"))
                }
                (Some((_, text)), _) => (row.value)(text, highest)
                    .map(Some)
                    .map_err(|error| format!("{error:#}")),
                (None, Some(own)) => Ok(own.value.clone().ok().flatten()),
                (None, None) => Ok((row.default)(pod)),
            };
            settings.push(Setting {
                container: container.cloned(),
                file: row.file,
                value,
                asked,
            });
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kubelet::tests::pod;

    /// Returns what is set for the pod and for its container `c`, and what is refused.
    fn of(annotations: serde_json::Value) -> (Vec<String>, Vec<String>, Vec<String>) {
        let pod = pod("u", "p", annotations, "Running");
        let (mut own, mut container, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for setting in settings(&pod, std::iter::once(&"c".to_owned()), 4) {
            let of_group = if setting.container.is_none() {
                &mut own
            } else {
                &mut container
            };
            match &setting.value {
                Ok(value) => of_group.extend(value.as_ref().map(|value| format!("{} {value}", setting.file))),
                Err(reason) => refused.push(setting.refused(reason)),
            }
        }
        (own, container, refused)
    }

    #[test]
    fn annotations_win_over_the_class() {
        let (own, container, _) = of(json!({}));
        assert_eq!(own, ["compute.priority 8", "compute.max max"]);
        assert_eq!(container, own);
        let (own, _, refused) = of(json!({
            "gcgroup.io/memory-limit": "512Mi",
            "gcgroup.io/priority": " 4 ",
            "gcgroup.io/compute-max": "50000 100000",
            "gcgroup.io/memory-swap-max": "8G",
        }));
        let expected = [
            "compute.priority 4",
            "compute.max 50000 100000",
            "memory.swap.max 8G",
            "memory.limit 536870912",
        ];
        assert_eq!(own, expected);
        assert!(refused.is_empty());
    }

    #[test]
    fn control_files_name_annotations_too() {
        let (own, container, _) = of(json!({ "gcgroup.io/compute.priority": "5" }));
        assert_eq!(
            (own[0].as_str(), container[0].as_str()),
            ("compute.priority 5", "compute.priority 5")
        );
    }

    #[test]
    fn container_has_annotations_of_its_own() {
        let (own, container, _) = of(json!({
            "memory-limit.gcgroup.io/c": "1Gi",
            "priority.gcgroup.io/c": "9",
            "priority.gcgroup.io/other": "10",
        }));
        assert_eq!(own, ["compute.priority 8", "compute.max max"]);
        assert_eq!(
            container,
            ["compute.priority 9", "compute.max max", "memory.limit 1073741824"]
        );
    }

    #[test]
    fn unreadable_annotation_changes_nothing_and_others_hold() {
        for text in ["3", "16", "-1", "high", ""] {
            let (own, container, refused) = of(json!({ "gcgroup.io/priority": text }));
            assert_eq!(own, ["compute.max max"], "{text}");
            assert_eq!(container, own, "{text}");
            assert!(
                refused[0].contains("annotation gcgroup.io/priority"),
                "{refused:?}"
            );
        }
        for text in [
            "lots",
            "",
            "-1",
            "1.5",
            "Gi",
            "9E",
            "50%",
            "20000000000000Ti",
            "1Gii",
        ] {
            let (own, _, refused) = of(json!({ "gcgroup.io/memory-limit": text }));
            assert_eq!(own, ["compute.priority 8", "compute.max max"], "{text}");
            assert_eq!(refused.len(), 1, "{text}");
        }
        let long = "9".repeat(200 << 10);
        for key in ["memory-limit", "compute-max", "priority", "memory-swap-max"] {
            let (_, _, refused) = of(json!({ format!("gcgroup.io/{key}"): long }));
            assert_eq!(refused.len(), 1, "{key}");
            assert!(refused[0].ends_with("longer than 100 characters"), "{key}");
            assert!(refused[0].len() < 256, "{key}");
        }
        for (text, bytes) in [
            ("4Gi", "4294967296"),
            ("1.5Gi", "1610612736"),
            ("1K", "1024"),
            ("max", "max"),
        ] {
            assert_eq!(super::bytes(text).unwrap(), bytes, "{text}");
        }
    }
}
