//! `gcgroup.devices` of groups: its format, the list in force, and what a process of a group is shown.

#[cfg(test)]
mod tests;

use super::{Device, DeviceSet, Edit, GroupId, LEASE, Scope, Settings, Tree, View};
use crate::error::{Error, Result};

/// Format of the control file, for error messages.
const EXPECTED: &str = "all, none, or indices and UUIDs of the file devices, as 0,2-3";

/// Length in bytes of the shortest beginning of a UUID that names a device, longer than `GPU-` or `MIG-`.
const MIN_PREFIX: usize = 5;

/// Devices that a process of a group with a list of devices is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisibleDevices {
    /// UUIDs of the devices that exist and that the process may use, in the order of their indices.
    pub allowed: Vec<String>,
    /// The value of `CUDA_VISIBLE_DEVICES` for the process.
    pub value: String,
}

impl Tree {
    /// Returns whether any group has a list of devices.
    pub fn has_device_lists(&self) -> bool {
        let state = self.state.lock();
        let mut groups = state.groups.values();
        groups.any(|group| group.settings.device_list().is_some())
    }

    /// Returns what a process that starts in the group is shown; `None`: everything. `ruled` is the list of
    /// a group below it that a rule makes first; `wanted` is the process's own `CUDA_VISIBLE_DEVICES`.
    pub fn visible_devices(
        &self,
        group: Option<GroupId>,
        ruled: Option<&str>,
        wanted: Option<&str>,
    ) -> Option<VisibleDevices> {
        // The text is the process's: it is not examined under the lock.
        let (list, devices) = {
            let state = self.state.lock();
            let group = group.and_then(|group| state.groups.get(&group));
            let above = group.and_then(|group| group.inherited.device_list());
            let ruled = ruled.and_then(|text| ruled_list(text, &state.devices));
            let list = match (above, ruled) {
                (Some(above), Some((list, _))) => above.intersection(&list).cloned().collect(),
                (above, ruled) => above.cloned().or(ruled.map(|(list, _)| list))?,
            };
            (list, state.devices.to_vec())
        };
        let allowed = devices.iter().filter(|device| list.contains(&device.uuid_text));
        let allowed: Vec<String> = allowed.map(|device| device.uuid_text.clone()).collect();
        let value = match wanted {
            None => allowed.join(","),
            Some(wanted) => intersect(wanted, &list, &devices).join(","),
        };
        Some(VisibleDevices { allowed, value })
    }
}

impl Tree {
    /// Completes the settings that a rule makes for a group that is made now: a lease begins, and a list of
    /// devices is resolved; those that do not exist are left out, and returned for the log.
    pub fn complete_ruled(&self, settings: &mut Settings, devices: Option<&str>) -> Vec<String> {
        let state = self.state.lock();
        // As root, whose settings are never refused.
        if let Some(seconds) = settings.written(LEASE, None) {
            let _ = settings.set(LEASE, None, state.lease_end(seconds), true);
        }
        let Some((list, missing)) = devices.and_then(|text| ruled_list(text, &state.devices)) else {
            return Vec::new();
        };
        let _ = settings.set_device_list(Some(list), true);
        missing
    }
}

/// Returns the devices of a rule's list that exist, and the entries that do not; `None`: all devices.
fn ruled_list(text: &str, devices: &[Device]) -> Option<(DeviceSet, Vec<String>)> {
    match text {
        "all" => None,
        "none" => Some((DeviceSet::new(), Vec::new())),
        text => Some(existing(text, devices)),
    }
}

/// Returns the devices of a rule's list that exist, and the entries, or parts of ranges, that do not.
fn existing(text: &str, devices: &[Device]) -> (DeviceSet, Vec<String>) {
    let (mut list, mut missing) = (DeviceSet::new(), Vec::new());
    for entry in entries(text) {
        if let Ok(found) = parse(entry, devices) {
            list.extend(found);
            continue;
        }
        let first = entry.split_once('-').and_then(|(first, _)| index(first));
        let rest = first.and_then(|first| devices.get(first..));
        match rest.zip(entry.split_once('-')) {
            // A range that ends behind the last device.
            Some((rest @ [_, ..], (_, last))) if is_beyond(last, devices.len()) => {
                list.extend(rest.iter().map(|device| device.uuid_text.clone()));
                missing.push(format!("{}-{last}", devices.len()));
            }
            _ => missing.push(entry.to_owned()),
        }
    }
    (list, missing)
}

/// Returns whether a text is a number, not smaller than `bound`.
fn is_beyond(text: &str, bound: usize) -> bool {
    index(text).is_some_and(|number| number >= bound)
}

/// Checks the format of a list of devices, whether or not they exist.
///
/// # Errors
/// `EINVAL`.
pub fn check_device_list(text: &str) -> Result<()> {
    let is_entry = |entry: &str| {
        let is_range = |(first, last): (&str, &str)| is_number(first) && is_number(last);
        let is_uuid = (entry.starts_with("GPU-") || entry.starts_with("MIG-")) && entry.len() >= MIN_PREFIX;
        is_number(entry) || is_uuid || entry.split_once('-').is_some_and(is_range)
    };
    let is_list = entries(text).all(is_entry) && entries(text).next().is_some();
    match matches!(text, "all" | "none") || is_list {
        true => Ok(()),
        false => Err(Error::bad(EXPECTED, text)),
    }
}

impl View<'_> {
    /// Returns `gcgroup.devices` as it was set.
    ///
    /// # Errors
    /// [`Error::NotFound`] where there is no list.
    pub fn device_list(&self) -> Result<String> {
        match self.scope() {
            Scope::Group(group, None) => Ok(shown(group.settings.device_list(), self.devices())),
            _ => Err(Error::NotFound),
        }
    }

    /// Returns `gcgroup.devices.effective`: the devices that exist and are in the lists of the group and all
    /// above.
    ///
    /// # Errors
    /// [`Error::NotFound`] where there is no list.
    pub fn effective_devices(&self) -> Result<String> {
        let Scope::Group(group, None) = self.scope() else {
            return Err(Error::NotFound);
        };
        let list = group.inherited.device_list();
        let is_in = |device: &&Device| list.is_none_or(|list| list.contains(&device.uuid_text));
        let indices = self.devices().iter().filter(is_in);
        Ok(joined(indices.map(|device| device.index.to_string()).collect()))
    }
}

impl Edit<'_> {
    /// Sets `gcgroup.devices`.
    ///
    /// # Errors
    /// `EINVAL` if a device is not in the file `devices`; `EPERM` if a user other than root adds a device to
    /// root's list.
    pub fn set_device_list(&mut self, text: &str) -> Result<()> {
        let list = match text {
            "all" => None,
            "none" => Some(DeviceSet::default()),
            text => Some(parse(text, &self.state().devices)?),
        };
        self.change(|settings, by_root| settings.set_device_list(list, by_root))
    }
}

/// Parses a list of devices.
///
/// # Errors
/// `EINVAL`: not in the format, or a device does not exist.
fn parse(text: &str, devices: &[Device]) -> Result<DeviceSet> {
    let mut list = DeviceSet::new();
    for entry in entries(text) {
        let (first, last) = match entry.split_once('-') {
            Some((first, last)) if is_number(first) => (first, last),
            _ => (entry, entry),
        };
        let found: Vec<&Device> = match (index(first), index(last)) {
            (Some(first), Some(last)) if last < devices.len() => {
                devices.get(first..=last).unwrap_or(&[]).iter().collect()
            }
            _ => devices
                .iter()
                .filter(|device| device.uuid_text == entry)
                .collect(),
        };
        if found.is_empty() {
            return Err(Error::bad(EXPECTED, text));
        }
        list.extend(found.into_iter().map(|device| device.uuid_text.clone()));
    }
    if list.is_empty() {
        return Err(Error::bad(EXPECTED, text));
    }
    Ok(list)
}

fn entries(text: &str) -> impl Iterator<Item = &str> {
    let entries = text.split(|sign: char| sign == ',' || sign.is_ascii_whitespace());
    entries.filter(|entry| !entry.is_empty())
}

/// Returns the number if `text` is its canonical spelling: `1,000` names no devices 1 and 0.
fn index(text: &str) -> Option<usize> {
    let number: usize = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Formats a list: indices, and UUIDs of devices that do not exist now.
fn shown(list: Option<&DeviceSet>, devices: &[Device]) -> String {
    let Some(list) = list else {
        return "all\n".to_owned();
    };
    let is_known = |uuid: &&String| devices.iter().any(|device| device.uuid_text == **uuid);
    let known = devices.iter().filter(|device| list.contains(&device.uuid_text));
    let known = known.map(|device| device.index.to_string());
    let unknown = list.iter().filter(|uuid| !is_known(uuid)).cloned();
    joined(known.chain(unknown).collect())
}

fn joined(names: Vec<String>) -> String {
    match names.is_empty() {
        true => "none\n".to_owned(),
        false => names.join(",") + "\n",
    }
}

/// Returns the devices of a program's `CUDA_VISIBLE_DEVICES` that are in `list`, in the program's order. As
/// for the driver, the first entry that names no device ends the list, and a device that is named twice hides
/// all: so no more entries are examined than there are devices, and one. Numbers count the GPUs that the
/// program sees, as NVML counts them for it and as in a container, in the order of their PCI addresses.
fn intersect(wanted: &str, list: &DeviceSet, devices: &[Device]) -> Vec<String> {
    let gpus = gpus(devices.iter().filter(|device| list.contains(&device.uuid_text)));
    let mut seen: Vec<&str> = Vec::new();
    for entry in wanted.split(',').map(str::trim) {
        let Some(device) = named(entry, devices, &gpus) else {
            break;
        };
        if seen.contains(&device.uuid_text.as_str()) {
            return Vec::new();
        }
        seen.push(&device.uuid_text);
    }
    let visible = seen.into_iter().filter(|uuid| list.contains(*uuid));
    visible.map(str::to_owned).collect()
}

/// Finds the device that an entry names: by a number, the first instance of a GPU in MIG mode.
fn named<'a>(entry: &str, devices: &'a [Device], gpus: &[Vec<&'a Device>]) -> Option<&'a Device> {
    if is_number(entry) {
        return gpus.get(entry.parse::<usize>().ok()?)?.first().copied();
    }
    if entry.len() < MIN_PREFIX {
        return None;
    }
    let begins_so = |device: &&Device| {
        let beginning = device.uuid_text.get(..entry.len());
        beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(entry))
    };
    let mut all = devices.iter().filter(begins_so);
    let found = all.next();
    found.filter(|_| all.next().is_none())
}

/// Returns the GPUs in the order of their PCI addresses, each with its instances or itself.
fn gpus<'a>(devices: impl Iterator<Item = &'a Device>) -> Vec<Vec<&'a Device>> {
    let mut gpus: Vec<Vec<&'a Device>> = Vec::new();
    for device in devices {
        let same = gpus.iter_mut().find(|parts| {
            parts
                .first()
                .is_some_and(|part| part.pci == device.pci && part.is_instance())
        });
        match same {
            Some(parts) => parts.push(device),
            None => gpus.push(vec![device]),
        }
    }
    gpus
}
