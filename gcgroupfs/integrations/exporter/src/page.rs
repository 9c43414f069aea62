//! The page's state as JSON. Command lines are no part of it: only their users and root may see them.

use gcgroup_client::node::{Activity, Target, Usage};
use serde_json::{Value, json};

use crate::sampler::State;
use crate::snapshot::{Group, Process};

/// Number of points of the small curve in a row.
const SMALL: usize = 36;

/// Returns all that the page shows. `open`: path of the process or group whose whole history is shown.
/// `is_writable`: whether the page may offer actions.
pub(crate) fn state(state: &State, open: Option<&str>, is_writable: bool) -> String {
    let Some(snapshot) = state.snapshot.as_deref() else {
        return json!({"error": state.error, "writable": is_writable, "events": state.events}).to_string();
    };
    let gpus = snapshot.gpus.iter().map(|gpu| {
        json!({
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
            "history": state.history.gpu(&gpu.uuid),
        })
    });
    let with_history = |mut row: Value, target: &Target| {
        row["history"] = state.history.percents(target, SMALL).into();
        row
    };
    let processes = snapshot.processes.iter();
    let processes = processes.map(|it| with_history(process(it), &Target::Process(it.of.pid)));
    let groups = snapshot.groups.iter();
    let groups = groups.map(|it| with_history(group(it), &Target::Group(it.of.path.clone())));
    let opened = open.map(|path| {
        path.parse()
            .map_or_else(|_| Target::Group(path.to_owned()), Target::Process)
    });
    json!({
        "error": state.error,
        "writable": is_writable,
        "time": snapshot.time.as_secs(),
        "policy": snapshot.policy,
        "gpus": gpus.collect::<Vec<_>>(),
        "processes": processes.collect::<Vec<_>>(),
        "groups": groups.collect::<Vec<_>>(),
        "processes_dropped": snapshot.processes_dropped,
        "groups_dropped": snapshot.groups_dropped,
        "waits": state.waits,
        "history": opened.and_then(|target| state.history.row(&target)),
        "events": state.events,
    })
    .to_string()
}

fn process(
    Process {
        of,
        activity,
        owner,
        host,
    }: &Process,
) -> Value {
    let mut row = usage(&of.usage, activity);
    row["pid"] = of.pid.to_string().into();
    row["comm"] = of.comm.clone().into();
    row["user"] = of.user.clone().into();
    row["group"] = of.group.clone().into();
    row["owner"] = json!(owner);
    row["gpus"] = of.devices.iter().map(|on| on.index).collect();
    row["share"] = of.usage.compute.stat.get("share_percent").into();
    row["waits"] = json!(of.waits);
    if let Some(host) = host {
        row["start"] = host.start.into();
        row["cpu_usec"] = host.cpu_usec.into();
        row["host_memory"] = host.memory.into();
    }
    row
}

fn group(group: &Group) -> Value {
    let mut row = usage(&group.of.usage, &group.activity);
    row["path"] = group.of.path.clone().into();
    row["user"] = group.of.user.clone().into();
    row["processes"] = group.nr_processes.into();
    row["gpus"] = group.of.devices.iter().map(|on| on.index).collect();
    row["lease"] = json!(group.of.lease);
    row
}

/// Returns what processes and groups have in common.
fn usage(usage: &Usage, activity: &Activity) -> Value {
    let (memory, compute) = (&usage.memory, &usage.compute);
    let waited = |pressure: &Option<_>| {
        pressure
            .as_ref()
            .map(|it: &gcgroup_client::node::Pressure| it.some.total_usec)
    };
    json!({
        "state": activity.state.name(),
        "gpu": activity.gpu.map(f64::round),
        "held": activity.held.round(),
        "gpu_usec": usage.stat("usage_usec"),
        "memory": memory.current,
        "peak": memory.peak,
        "own_limit": memory.limit,
        "limit": memory.effective_limit,
        "swapped": memory.swap.current,
        "priority": compute.priority,
        "quota_usec": compute.max.quota_usec,
        "period_usec": compute.max.period_usec,
        "refused": usage.refusals(),
        "compute_waited_usec": waited(&compute.pressure),
        "memory_waited_usec": waited(&memory.pressure),
    })
}
