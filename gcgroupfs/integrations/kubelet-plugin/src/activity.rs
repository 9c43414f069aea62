//! Which pods are active: their containers may run, now or later. The kubelet keeps entries of ended pods
//! until the next allocation, so its checkpoint does not tell.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::kubelet::Pod;

/// How long a pod counts as active that has neither been listed nor had processes: it is about to start.
const GRACE: Duration = Duration::from_secs(60);

/// Knowledge about one pod of the checkpoint.
#[derive(Debug)]
struct Known {
    since: Instant,
    /// Whether it has been listed as active, or had processes, since then.
    was_seen: bool,
    has_processes: bool,
}

/// Knowledge about the pods of the checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// `None` if they cannot be listed now.
    pods: Option<BTreeMap<String, Pod>>,
    known: BTreeMap<String, Known>,
}

impl Activity {
    /// Takes a list of the node's pods, or that there is none.
    pub(crate) fn set_pods(&mut self, pods: Option<Vec<Pod>>) {
        self.pods = pods.map(|pods| {
            let pods = pods.into_iter();
            pods.map(|pod| (pod.uid().to_owned(), pod)).collect()
        });
    }

    /// Takes the pods of the checkpoint, and those that have processes.
    pub(crate) fn update(&mut self, stored: &BTreeSet<&str>, running: &BTreeSet<String>) {
        self.known.retain(|uid, _| stored.contains(uid.as_str()));
        for uid in stored {
            let is_listed = self.is_listed(uid);
            let known = self.known.entry((*uid).to_owned()).or_insert_with(|| Known {
                since: Instant::now(),
                was_seen: false,
                has_processes: false,
            });
            known.has_processes = running.contains(*uid);
            known.was_seen |= known.has_processes || is_listed;
        }
    }

    /// Returns whether the last list has the pod as active.
    pub(crate) fn is_listed(&self, uid: &str) -> bool {
        self.pod(uid).is_some_and(Pod::is_active)
    }

    /// Returns whether the containers of a pod of the checkpoint may run.
    pub(crate) fn is_active(&self, uid: &str) -> bool {
        let Some(known) = self.known.get(uid) else {
            return false;
        };
        let has_ended = self.pod(uid).is_some_and(|pod| !pod.is_active());
        self.is_listed(uid)
            || known.has_processes
            || (!known.was_seen && !has_ended && known.since.elapsed() < GRACE)
    }

    pub(crate) fn pod(&self, uid: &str) -> Option<&Pod> {
        self.pods.as_ref()?.get(uid)
    }

    /// Returns all pods of the node, if they can be listed.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().flat_map(BTreeMap::values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::tests::pod;

    fn listed(phase: &str) -> Option<Vec<Pod>> {
        Some(vec![pod("u", "p", serde_json::json!({}), phase)])
    }

    fn update(activity: &mut Activity, running: &[&str]) -> bool {
        let running = running.iter().map(|uid| (*uid).to_owned()).collect();
        activity.update(&BTreeSet::from(["u"]), &running);
        activity.is_active("u")
    }

    #[test]
    fn listed_pod_is_active_until_it_ends() {
        let mut activity = Activity::default();
        activity.set_pods(listed("Pending"));
        assert!(update(&mut activity, &[]));
        activity.set_pods(listed("Succeeded"));
        assert!(update(&mut activity, &["u"]), "its processes are still there");
        assert!(!update(&mut activity, &[]));
    }

    #[test]
    fn pod_that_is_about_to_start_is_active() {
        let mut activity = Activity::default();
        activity.set_pods(Some(Vec::new()));
        assert!(update(&mut activity, &[]), "the list is older than the pod");
        assert!(update(&mut activity, &["u"]));
        assert!(!update(&mut activity, &[]), "it has ended");
    }

    #[test]
    fn without_a_list_processes_tell() {
        let mut activity = Activity::default();
        assert!(update(&mut activity, &["u"]));
        assert!(!update(&mut activity, &[]));
        assert!(!activity.is_active("other"));
    }
}
