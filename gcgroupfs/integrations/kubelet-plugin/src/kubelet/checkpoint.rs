//! The file in which the kubelet stores the devices of each container. It is written before a container
//! starts, so the plugin learns from it for which pod the kubelet asks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

use crate::cards::{Claim, Resource};

/// Name of the file in the directory of device plugins.
const NAME: &str = "kubelet_internal_checkpoint";

/// Longest file that is read, bytes.
const MAX_LENGTH: u64 = 64 << 20;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: Data,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    /// `null` where no container has devices.
    pod_device_entries: Option<Vec<Entry>>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    #[serde(rename = "DeviceIDs")]
    ids: Option<Ids>,
}

/// A list up to Kubernetes 1.19, since then a list for each NUMA node.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Ids {
    List(BTreeSet<String>),
    ByNode(BTreeMap<String, BTreeSet<String>>),
}

/// Returns the devices of this plugin that the kubelet has given to containers; none if nothing is stored.
///
/// # Errors
/// The file cannot be read, or has another format.
pub(crate) fn read(directory: &Path) -> anyhow::Result<Vec<Claim>> {
    let path = directory.join(NAME);
    let mut text = String::new();
    match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.and_then(|file| file.take(MAX_LENGTH).read_to_string(&mut text)),
    }
    .with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("{}: unknown format", path.display()))
}

fn parse(text: &str) -> anyhow::Result<Vec<Claim>> {
    let checkpoint: Checkpoint = serde_json::from_str(text)?;
    let claims = checkpoint.data.pod_device_entries.into_iter().flatten();
    let claims = claims.filter_map(|entry| {
        Some(Claim {
            resource: Resource::of(&entry.resource)?,
            pod: Some(entry.pod),
            container: entry.container,
            ids: match entry.ids? {
                Ids::List(ids) => ids,
                Ids::ByNode(nodes) => nodes.into_values().flatten().collect(),
            },
        })
    });
    Ok(claims.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_both_formats_are_claims() {
        let text = r#"{"Data":{"PodDeviceEntries":[
            {"PodUID":"u1","ContainerName":"a","ResourceName":"gcgroup.io/gpu-memory",
             "DeviceIDs":{"-1":["G.0"],"1":["G.1"]},"AllocResp":"Eg=="},
            {"PodUID":"u2","ContainerName":"b","ResourceName":"gcgroup.io/gpu","DeviceIDs":["G"]},
            {"PodUID":"u3","ContainerName":"c","ResourceName":"example.com/other","DeviceIDs":["x"]}],
            "RegisteredDevices":{"gcgroup.io/gpu":["G"]}},"Checksum":1}"#;
        let claims = parse(text).unwrap();
        assert_eq!(claims.len(), 2);
        assert_eq!(claims[0].pod.as_deref(), Some("u1"));
        assert_eq!(claims[0].ids.iter().collect::<Vec<_>>(), ["G.0", "G.1"]);
        assert_eq!(
            (claims[1].resource, claims[1].container.as_str()),
            (Resource::Card, "b")
        );
    }

    #[test]
    fn checkpoint_without_entries_is_empty_and_other_text_is_error() {
        let empty = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#;
        assert!(parse(empty).unwrap().is_empty());
        for text in ["", "[]", r#"{"Data":{"PodDeviceEntries":[{}]}}"#] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
