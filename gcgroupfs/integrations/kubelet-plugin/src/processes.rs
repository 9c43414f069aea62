//! Which pods have processes on this node, as the kernel tells.

use std::collections::BTreeSet;
use std::fs;

use gcgroup_client::cgroup;

/// Returns the UID of the pod that a process is in; `None` if it is in none or has ended. Needs the host's
/// pid namespace.
pub(crate) fn pod_of(pid: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    cgroup::names(&text).find_map(cgroup::pod_uid)
}

/// Returns the UIDs of the pods that have processes. Needs the host's pid namespace.
pub(crate) fn pods() -> BTreeSet<String> {
    let mut uids = BTreeSet::new();
    let Ok(entries) = fs::read_dir("/proc") else {
        return uids;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_str().is_none_or(|name| name.parse::<u32>().is_err()) {
            continue;
        }
        // The process may have ended.
        if let Ok(text) = fs::read_to_string(entry.path().join("cgroup")) {
            uids.extend(cgroup::names(&text).find_map(cgroup::pod_uid));
        }
    }
    uids
}
