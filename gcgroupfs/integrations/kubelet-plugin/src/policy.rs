//! Settings of a pod's group: from its annotations, otherwise from its quality-of-service class.

use anyhow::{Context, ensure};

use crate::kubelet::Pod;

/// Priority of pods that do not ask for one, by class: 0 is the highest, 15 the lowest.
const PRIORITIES: [(&str, u8); 3] = [("Guaranteed", 6), ("Burstable", 8), ("BestEffort", 12)];

/// Lowest priority.
const LOWEST: u8 = 15;

/// Setting of a group: control file, and annotation of pods that sets it.
struct Row {
    file: &'static str,
    annotation: &'static str,
    /// Value where the annotation is missing; `None`: nothing is written.
    default: fn(&Pod) -> Option<String>,
}

const ROWS: [Row; 3] = [
    Row {
        file: "compute.priority",
        annotation: "gcgroup.io/compute.priority",
        default: priority,
    },
    Row {
        file: "compute.max",
        annotation: "gcgroup.io/compute.max",
        default: |_| Some("max".to_owned()),
    },
    Row {
        file: "memory.swap.max",
        annotation: "gcgroup.io/memory.swap.max",
        default: |_| None,
    },
];

/// Control file and what is written to it.
pub(crate) type Setting = (&'static str, String);

fn priority(pod: &Pod) -> Option<String> {
    let class = PRIORITIES.iter().find(|(class, _)| *class == pod.qos_class());
    class.map(|(_, priority)| priority.to_string())
}

/// Returns the settings of a pod's group. The daemon checks all values; a pod may not ask for a higher
/// priority than `highest`.
///
/// # Errors
/// The annotation of the priority is none that the pod may have.
pub(crate) fn settings(pod: &Pod, highest: u8) -> anyhow::Result<Vec<Setting>> {
    let mut settings = Vec::new();
    for row in &ROWS {
        let asked = pod.annotation(row.annotation);
        if let Some(asked) = asked.filter(|_| row.file == "compute.priority") {
            let priority: u8 = asked
                .trim()
                .parse()
                .with_context(|| format!("annotation {}: {asked:?} is no number", row.annotation))?;
            ensure!(
                (highest..=LOWEST).contains(&priority),
                "annotation {}: pods may have {highest} to {LOWEST}, not {priority}",
                row.annotation
            );
        }
        let value = asked.map(|asked| asked.trim().to_owned());
        settings.extend(
            value
                .or_else(|| (row.default)(pod))
                .map(|value| (row.file, value)),
        );
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kubelet::tests::pod;

    fn of(annotations: serde_json::Value) -> anyhow::Result<Vec<Setting>> {
        settings(&pod("u", "p", annotations, "Running"), 4)
    }

    #[test]
    fn annotations_win_over_the_class() {
        let own = of(json!({})).unwrap();
        assert_eq!(
            own,
            [
                ("compute.priority", "8".to_owned()),
                ("compute.max", "max".to_owned())
            ]
        );
        let asked = of(json!({
            "gcgroup.io/compute.priority": " 4 ",
            "gcgroup.io/compute.max": "50000 100000",
            "gcgroup.io/memory.swap.max": "8G",
        }));
        let asked: Vec<_> = asked.unwrap().into_iter().map(|(_, value)| value).collect();
        assert_eq!(asked, ["4", "50000 100000", "8G"]);
    }

    #[test]
    fn priority_beyond_what_pods_may_have_is_refused() {
        for text in ["3", "16", "-1", "high", ""] {
            let error = of(json!({ "gcgroup.io/compute.priority": text })).unwrap_err();
            assert!(error.to_string().contains("compute.priority"), "{text}: {error}");
        }
    }
}
