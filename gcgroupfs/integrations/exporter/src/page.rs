//! The page's state as JSON.

use serde_json::{Value, json};

use crate::files::Files;
use crate::sampler::State;
use crate::snapshot::{DEVICE_STAT, Group, Process, Snapshot};

/// Returns all that the page shows. `is_writable`: whether the page may offer actions.
pub(crate) fn state(state: &State, is_writable: bool) -> String {
    let snapshot = state.snapshot.as_deref();
    let of = |show: fn(&Snapshot) -> Value| snapshot.map(show).unwrap_or_default();
    json!({
        "error": state.error,
        "writable": is_writable,
        "time": snapshot.map(|snapshot| snapshot.time.as_secs()),
        "gpus": of(|snapshot| snapshot.gpus.iter().map(|gpu| json!({
            "index": gpu.index,
            "uuid": gpu.uuid,
            "model": gpu.model,
            "total": gpu.files.key(DEVICE_STAT, "memory_total"),
            "used": gpu.files.key(DEVICE_STAT, "memory_used"),
            "charged": gpu.files.key(DEVICE_STAT, "memory_charged"),
            "utilization": gpu.files.key(DEVICE_STAT, "utilization"),
            "temperature": gpu.files.key(DEVICE_STAT, "temperature"),
            "power_mw": gpu.files.key(DEVICE_STAT, "power_mw"),
            "governed": gpu.files.key(DEVICE_STAT, "governed"),
            "unmanaged": gpu.files.key(DEVICE_STAT, "unmanaged"),
        })).collect()),
        "processes": of(|snapshot| snapshot.processes.iter().map(process).collect()),
        "groups": of(|snapshot| snapshot.groups.iter().map(group).collect()),
        "processes_dropped": snapshot.map(|snapshot| snapshot.processes_dropped),
        "groups_dropped": snapshot.map(|snapshot| snapshot.groups_dropped),
        "waits": state.waits,
        "history": state.history,
        "events": state.events,
    })
    .to_string()
}

fn process(process: &Process) -> Value {
    json!({
        "pid": process.pid,
        "comm": process.comm,
        "user": process.user,
        "group": process.group,
        "owner": process.owner,
        "gpus": process.devices.iter().map(|(index, _)| index).collect::<Vec<_>>(),
        "memory": process.files.number("memory.current"),
        "limit": process.files.number("memory.limit"),
        "priority": process.files.number("compute.priority"),
        "state": status(&process.files),
        "swapped": process.files.key("memory.stat", "swapped"),
    })
}

fn group(group: &Group) -> Value {
    json!({
        "path": group.path,
        "processes": group.nr_processes,
        "memory": group.files.number("memory.current"),
        "limit": group.files.number("memory.limit"),
        "state": status(&group.files),
        "swapped": group.files.key("memory.stat", "swapped"),
    })
}

fn status(files: &Files) -> &'static str {
    match files.is_frozen() {
        true => "frozen",
        false => "running",
    }
}
