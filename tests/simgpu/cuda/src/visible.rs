//! Visible devices and their order: `CUDA_VISIBLE_DEVICES`.

use simgpu::{Device, Machine};

/// Returns the indices of the devices listed in `CUDA_VISIBLE_DEVICES`, in its order, up to the first invalid
/// entry; without the variable, all. A duplicate entry hides all devices. A process sees at most one MIG
/// instance, the first, and then no whole device.
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

/// Finds a device by index, UUID or unambiguous UUID prefix. A MIG instance can also be named `MIG-<UUID of
/// its device>/<GPU instance>/<compute instance>`.
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

/// Returns the usable form of a device: itself, or its first instance in MIG mode.
fn usable(device: Device<'_>) -> Option<Device<'_>> {
    match device.is_divided() {
        true => device.instances().next(),
        false => Some(device),
    }
}
