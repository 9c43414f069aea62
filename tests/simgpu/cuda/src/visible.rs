//! Which of the machine's devices a process may see, and in what order: `CUDA_VISIBLE_DEVICES`.

use simgpu::{Device, Machine};

/// The places of the devices that `CUDA_VISIBLE_DEVICES` leaves, in its order, up to the first that is none;
/// all without it. One named twice leaves none at all. A process sees one instance at most, the first, and
/// then no whole device.
pub(crate) fn of(machine: &Machine, wish: Option<&str>) -> Vec<usize> {
    let visible = match wish {
        None => machine
            .devices()
            .filter_map(usable)
            .map(|it| it.index())
            .collect(),
        Some(wish) => named(machine, wish),
    };
    let is_instance = |index: &&usize| machine.device(**index).is_some_and(|it| it.part_of().is_some());
    match visible.iter().find(is_instance) {
        Some(first) => vec![*first],
        None => visible,
    }
}

fn named(machine: &Machine, wish: &str) -> Vec<usize> {
    let mut visible = Vec::new();
    for name in wish.split(',').map(str::trim) {
        let Some(device) = find(machine, name) else {
            break;
        };
        if visible.contains(&device.index()) {
            return Vec::new();
        }
        visible.push(device.index());
    }
    visible
}

/// The device of that index or UUID, or of a UUID that begins so, if no other's does. An instance is also
/// `MIG-<its device's UUID>/<GPU instance>/<compute instance>`.
fn find<'a>(machine: &'a Machine, name: &str) -> Option<Device<'a>> {
    if let Ok(index) = name.parse::<usize>() {
        return machine.devices().find(|it| it.index() == index).and_then(usable);
    }
    if let Some((device, instance)) = name.strip_prefix("MIG-").and_then(|name| name.split_once('/')) {
        let parent = machine.devices().find(|it| it.uuid_string() == device)?;
        let number = instance
            .strip_suffix("/0")?
            .parse::<usize>()
            .ok()?
            .checked_sub(1)?;
        return parent.instances().nth(number);
    }
    let all = machine
        .devices()
        .flat_map(|it| [it].into_iter().chain(it.instances()));
    let mut found = all.filter(|it| name.len() > 4 && it.uuid_string().starts_with(name));
    let first = found.next()?;
    found.next().is_none().then_some(first).and_then(usable)
}

/// What there is of a device for a process: itself, or its first instance, if it is divided.
fn usable(device: Device<'_>) -> Option<Device<'_>> {
    match device.is_divided() {
        true => device.instances().next(),
        false => Some(device),
    }
}
