//! The page's state as JSON.

use serde_json::{Value, json};

use crate::sampler::State;
use crate::snapshot::{Group, Process, Snapshot};

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
            "model": gpu.name,
            "total": gpu.memory.total,
            "used": gpu.memory.used,
            "charged": gpu.memory.charged,
            "utilization": gpu.utilization,
            "temperature": gpu.temperature,
            "power_mw": gpu.power_mw,
            "governed": gpu.governed,
            "unmanaged": gpu.unmanaged,
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

fn process(Process { of, state, owner }: &Process) -> Value {
    json!({
        "pid": of.pid.to_string(),
        "comm": of.comm,
        "user": of.user,
        "group": of.group,
        "owner": owner,
        "gpus": of.devices.iter().map(|on| on.index.to_string()).collect::<Vec<_>>(),
        "memory": of.usage.memory.current,
        "limit": of.usage.memory.effective_limit,
        "priority": of.usage.compute.priority,
        "state": state.name(),
        "swapped": of.usage.memory.swap.current,
    })
}

fn group(group: &Group) -> Value {
    let usage = &group.of.usage;
    json!({
        "path": group.of.path,
        "processes": group.nr_processes,
        "memory": usage.memory.current,
        "limit": usage.memory.effective_limit,
        "state": group.state.name(),
        "swapped": usage.memory.swap.current,
    })
}
