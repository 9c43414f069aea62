//! `CUDA_VISIBLE_DEVICES` of the program. Its numbers count the GPUs that a process sees, as in a container;
//! the program's group may show it fewer than this process sees.

use std::env;
use std::path::Path;
use std::time::Duration;

use gcgroup_client::Client;
use gcgroup_client::node::read_devices;

pub(super) const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// Returns the variable for a program that begins in `group`; `None`: as it is, since it names no numbers,
/// the group shows all GPUs, or the daemon does not tell.
pub(super) fn translated(
    socket: &Path,
    group: &str,
    own_group: Option<&str>,
    patience: Duration,
) -> Option<String> {
    let variable = env::var(VISIBLE_DEVICES).ok()?;
    if !variable.split(',').any(|entry| number(entry).is_some()) {
        return None;
    }
    let mut client = Client::connect_with(socket, patience).ok()?;
    let inside = client.devices(group)?;
    let outside = client.devices(own_group.unwrap_or_default());
    let outside = outside.or_else(|| all(&mut client))?;
    // A number means a GPU, and a GPU in MIG mode has many instances.
    let is_whole = |uuid: &String| !uuid.starts_with("MIG-");
    (inside.iter().chain(&outside).all(is_whole)).then(|| translate(&variable, &outside, &inside))
}

/// Returns the UUIDs of all devices.
fn all(client: &mut Client) -> Option<Vec<String>> {
    let devices = read_devices(client).ok()?.into_iter();
    Some(devices.map(|device| device.uuid).collect())
}

fn number(entry: &str) -> Option<usize> {
    entry.trim().parse().ok()
}

/// Translates numbers that count `outside` into those that count `inside`. As for the driver, a number beyond
/// the last GPU ends the list.
fn translate(variable: &str, outside: &[String], inside: &[String]) -> String {
    let mut entries = Vec::new();
    for entry in variable.split(',') {
        let Some(number) = number(entry) else {
            entries.push(entry.trim().to_owned());
            continue;
        };
        let Some(uuid) = outside.get(number) else { break };
        let place = inside.iter().position(|other| other == uuid);
        entries.extend(place.map(|place| place.to_string()));
    }
    entries.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_translated_and_uuids_stay() {
        let uuids = |numbers: &[u8]| -> Vec<String> { numbers.iter().map(|n| format!("GPU-{n}")).collect() };
        let (outside, inside) = (uuids(&[0, 1, 2, 3]), uuids(&[2, 3]));
        for (variable, want) in [
            ("2,3", "0,1"),
            (" 3 ,2", "1,0"),
            ("0,3", "1"),
            ("0", ""),
            ("3,4,2", "1"),
            ("GPU-2,3", "GPU-2,1"),
            ("2,-1,3", "0,-1,1"),
            ("2,2", "0,0"),
        ] {
            assert_eq!(translate(variable, &outside, &inside), want, "{variable}");
        }
    }
}
