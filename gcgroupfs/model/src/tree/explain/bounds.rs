//! The limits and settings in force, each with its origin.

use gcgroup_abi::DEFAULT_PRIORITY;

use super::{Case, Line, Place, Subject, shown, told};
use crate::arbiter::Competitor;
use crate::text::size;
use crate::tree::GroupId;
use crate::tree::process::Process;
use crate::tree::settings::{
    COMPUTE_PRIORITY, MEMORY_HIGH, MEMORY_LIMIT, MEMORY_SWAP_MAX, SETTINGS, Setting, Value,
};

/// Returns a line for each value in force, in the order of the table of settings.
pub(super) fn bounds(case: &Case<'_>) -> Vec<Line> {
    let places = case.places();
    let mut lines = Vec::new();
    for setting in SETTINGS {
        let found = in_force(case, setting, &places);
        let held = case.held(setting, &places);
        let is_any = !found.is_empty() || !held.is_empty();
        lines.extend(
            found
                .into_iter()
                .map(|(place, value)| line(case, setting, place, value)),
        );
        lines.extend(held);
        if !is_any {
            lines.extend(default(case, setting).map(Line::new));
        }
    }
    let policy = case.state.policy().name;
    lines.push(Line::new(format!("compute.policy {policy}: for all processes")));
    if let Subject::Process(process) = case.subject {
        lines.extend((0..case.state.devices.len()).filter_map(|device| share(case, process, device)));
    }
    if let Subject::Group(group) = case.subject {
        let of_processes = case.state.group_priority(group, None);
        lines.extend((of_processes != priority(case, None)).then(|| {
            Line::new(format!(
                "compute.priority {of_processes} among its siblings: that of its processes"
            ))
        }));
    }
    lines
}

/// Says what a process has of a device while all that have lately had work want it, and on which levels that
/// is decided; `None` if it does not use the device.
fn share(case: &Case<'_>, process: &Process, device: usize) -> Option<Line> {
    let mut above = "the root".to_owned();
    let mut levels = Vec::new();
    for one in case.state.contest(process, device) {
        let group = one.group.map(GroupId);
        let name = group.map_or("the process".to_owned(), |group| case.name(group));
        let Competitor {
            priority,
            percent,
            nr_siblings,
            ..
        } = one;
        if nr_siblings > 0 {
            let siblings = format!("beside {nr_siblings} with work");
            levels.push(format!(
                "in {above} {name} has {percent} % by priority {priority} {siblings}"
            ));
        }
        above = name;
    }
    let percent = process.devices.get(device)?.share_percent;
    let levels = match levels.as_slice() {
        [] => "no other has had work".to_owned(),
        levels => levels.join(", "),
    };
    (percent > 0).then(|| Line::new(format!("share of GPU {device} {percent} %: {levels}")))
}

/// Returns the values of a setting that apply. Of a setting that inherits, the nearest holds on each device;
/// of others all hold, without those that bound nothing.
fn in_force<'a>(case: &Case<'a>, setting: &Setting, places: &[Place<'a>]) -> Vec<(Place<'a>, Value)> {
    let mut found: Vec<(Place<'a>, Value)> = Vec::new();
    for place in places {
        let Some(value) = place.settings().written(setting, case.uuid(place.device)) else {
            continue;
        };
        let is_hidden =
            |(nearer, _): &(Place<'_>, Value)| nearer.device.is_none() || nearer.device == place.device;
        let holds = match setting.inherits {
            true => !found.iter().any(is_hidden),
            false => value != setting.default,
        };
        if holds {
            found.push((*place, value));
        }
    }
    found
}

fn line(case: &Case<'_>, setting: &'static Setting, place: Place<'_>, value: Value) -> Line {
    let origin = place.origin(setting);
    let value_text = case
        .lease(setting, place)
        .unwrap_or_else(|| shown(setting, value));
    let mut text = format!("{} {value_text}", case.file(place, setting.name));
    if [MEMORY_LIMIT, MEMORY_HIGH].contains(&setting) {
        text += &format!(" (used {})", size(case.used(place)));
    }
    if setting == COMPUTE_PRIORITY {
        let number = priority(case, place.device);
        let is_held = place.settings().held(setting, case.uuid(place.device)).is_some();
        if Value::Number(number.into()) != value && !is_held {
            text += &format!(" (raised to {number} by what root has set)");
        }
    }
    if setting == MEMORY_SWAP_MAX
        && let Subject::Process(process) = case.subject
        && !process.can_swap()
    {
        text += " (without effect: the program was not started with --swap)";
    }
    Line {
        age: origin.and_then(|noted| case.age(noted.at)),
        text: format!("{text}: {}", source(case, setting, place, value)),
    }
}

/// Says where a value comes from, and what the configuration says instead.
fn source(case: &Case<'_>, setting: &Setting, place: Place<'_>, value: Value) -> String {
    let told = told(place.origin(setting));
    let configured = match (place.entity, place.device) {
        (Subject::Group(group), None) => {
            let path = case.state.path(Some(group.id));
            case.state
                .configured
                .get(&path)
                .and_then(|said| said.get(setting.name))
        }
        _ => None,
    };
    match configured {
        Some(said) if said == setting.show(value).trim_end() => "[[group]] of the configuration".to_owned(),
        Some(said) => {
            let said = setting
                .parse(said, value, None)
                .map_or_else(|_| said.clone(), |said| shown(setting, said));
            format!("{told}; the configuration says {said}")
        }
        None => told,
    }
}

fn priority(case: &Case<'_>, device: Option<usize>) -> u32 {
    match case.subject {
        Subject::Process(process) => process.priority(device, case.uuid(device)),
        Subject::Group(group) => group.inherited.rank(device).in_force(),
    }
}

/// Returns what holds where nothing is set.
fn default(case: &Case<'_>, setting: &Setting) -> Option<String> {
    let is_process = matches!(case.subject, Subject::Process(_));
    let text = match setting {
        _ if setting == MEMORY_LIMIT => "none: the memory of the GPU".to_owned(),
        _ if setting == MEMORY_SWAP_MAX && is_process => "0: memory cannot move to the host".to_owned(),
        _ if setting == COMPUTE_PRIORITY => format!("{DEFAULT_PRIORITY}: default"),
        _ => return None,
    };
    Some(format!("{} {text}", setting.name))
}
