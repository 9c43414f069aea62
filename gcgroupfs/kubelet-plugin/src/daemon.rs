//! Client of the gcgroupfs daemon: the cards, their health, and the groups of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use gcgroup_client::Client;
use nix::errno::Errno;
use serde::Deserialize;

use crate::cards::Card;
use crate::policy::Setting;
use crate::processes;

/// Group above all pods' groups. The daemon's rule puts the processes of a pod into `pods/UID`.
const PODS: &str = "pods";

/// Limits and settings that hold for all processes of a pod together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Most memory on each card by UUID: `None` without a limit. On cards that are missing here it is 0.
    pub(crate) limits: BTreeMap<String, Option<u64>>,
    pub(crate) settings: Vec<Setting>,
}

/// Line of the daemon's list of processes.
#[derive(Debug, Deserialize)]
struct ProcessLine {
    pid: String,
    device: Option<String>,
    #[serde(default)]
    group: Option<String>,
}

/// Line of the daemon's list of groups.
#[derive(Debug, Deserialize)]
struct Line {
    group: String,
    device: Option<String>,
}

/// The daemon at a socket.
#[derive(Debug)]
pub(crate) struct Daemon {
    socket: PathBuf,
    /// Terms in force, by the pod's UID.
    applied: BTreeMap<String, Terms>,
}

impl Daemon {
    pub(crate) fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
            applied: BTreeMap::new(),
        }
    }

    /// Returns the cards. A card is healthy if NVML tells the daemon its use of memory.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub(crate) fn cards(&self) -> anyhow::Result<Vec<Card>> {
        let mut client = Client::connect(&self.socket)?;
        let mut read = |name: &str| {
            let text = client.get(name)?;
            text.map_err(|refusal| anyhow!("cannot read {name}: {refusal}"))
        };
        // The daemon samples the cards when it is asked, and shows the sample to the next reader.
        read("devices.stat")?;
        Ok(cards(&read("devices")?, &read("devices.stat")?))
    }

    /// Makes a pod's group with its limits and settings, or changes what differs.
    ///
    /// # Errors
    /// The daemon does not answer, or refuses. Limits of memory are set before anything else.
    pub(crate) fn enforce(&mut self, uid: &str, terms: &Terms, cards: &[Card]) -> anyhow::Result<()> {
        let mut client = Client::connect(&self.socket)?;
        let group = format!("{PODS}/{uid}");
        // A limit that is set last tells whether the group is complete, also after another plugin's work.
        let last = format!("{group}/memory.limit");
        let total = sum(terms);
        if self.applied.get(uid) == Some(terms) && client.get(&last)?.is_ok_and(|text| text.trim() == total) {
            return Ok(());
        }
        self.applied.remove(uid);
        for path in [PODS, &group] {
            match client.make(path)? {
                Err(refusal) if refusal.errno != Errno::EEXIST => {
                    bail!("cannot make group {path}: {refusal}")
                }
                _ => {}
            }
        }
        let mut set = |path: &str, value: &str| match client.set(path, value)? {
            Ok(()) => Ok(()),
            Err(refusal) => Err(anyhow!("cannot write {value} to {path}: {refusal}")),
        };
        for card in cards {
            let limit = terms.limits.get(&card.uuid).copied();
            let path = format!("{group}/{}/memory.limit", card.index);
            set(&path, &shown(limit.unwrap_or(Some(0))))?;
        }
        set(&last, &total)?;
        for (file, value) in &terms.settings {
            set(&format!("{group}/{file}"), value)?;
        }
        self.applied.insert(uid.to_owned(), terms.clone());
        Ok(())
    }

    /// Moves each governed process of a pod that is in no group into its pod's. Returns their pids with the
    /// UIDs: no rule of the daemon has put them there.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub(crate) fn take_in_strays(&self) -> anyhow::Result<Vec<(String, String)>> {
        let mut client = Client::connect(&self.socket)?;
        let text = client.list(&["gcgroup.events"])?;
        let text = text.map_err(|refusal| anyhow!("cannot list processes: {refusal}"))?;
        let strays = strays(&text, processes::pod_of)?;
        for (pid, uid) in &strays {
            let group = format!("{PODS}/{uid}");
            for path in [PODS, &group] {
                if client.make(path)?.is_ok() && path == group {
                    // As the rule makes it for a pod without units.
                    let _ = client.set(&format!("{group}/memory.limit"), "0")?;
                }
            }
            // A process that has ended meanwhile needs no group.
            let _ = client.set(&format!("{group}/gcgroup.procs"), pid)?;
        }
        Ok(strays)
    }

    /// Removes the groups of all other pods, as far as no process is in them.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub(crate) fn retain(&mut self, uids: &BTreeSet<String>) -> anyhow::Result<()> {
        self.applied.retain(|uid, _| uids.contains(uid));
        let mut client = Client::connect(&self.socket)?;
        let text = client.list_groups(&["gcgroup.events"])?;
        let text = text.map_err(|refusal| anyhow!("cannot list groups: {refusal}"))?;
        for uid in pods(&text)? {
            if !uids.contains(&uid) {
                // A group with processes stays until they have ended.
                let _ = client.remove(&format!("{PODS}/{uid}"))?;
            }
        }
        Ok(())
    }
}

/// Returns the limit over all cards, as the daemon shows it.
fn sum(terms: &Terms) -> String {
    let sum = terms
        .limits
        .values()
        .try_fold(0_u64, |sum, limit| limit.map(|limit| sum.saturating_add(limit)));
    shown(sum)
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string())
}

/// Parses `devices` and `devices.stat`.
fn cards(devices: &str, stats: &str) -> Vec<Card> {
    let is_sampled = |index: &str| {
        let line = stats.lines().find(|line| line.split(' ').next() == Some(index));
        let used = line.and_then(|line| line.split(' ').find_map(|pair| pair.strip_prefix("memory_used=")));
        used.is_some_and(|used| used.parse::<u64>().is_ok())
    };
    let card = |line: &str| {
        let mut words = line.split(' ');
        let (index, uuid, pci) = (words.next()?, words.next()?, words.next()?);
        Some(Card {
            index: index.to_owned(),
            uuid: uuid.to_owned(),
            pci: pci.to_owned(),
            total: words.next()?.parse().ok()?,
            is_healthy: is_sampled(index),
        })
    };
    devices.lines().filter_map(card).collect()
}

/// Returns the processes, from the daemon's list, that are in a pod and in no group, with the pod's UID. One
/// in another group has been moved there by root.
fn strays(text: &str, pod_of: impl Fn(&str) -> Option<String>) -> anyhow::Result<Vec<(String, String)>> {
    let mut strays = Vec::new();
    for line in text.lines() {
        let line: ProcessLine = serde_json::from_str(line)?;
        let Some(uid) = pod_of(&line.pid).filter(|_| line.device.is_none()) else {
            continue;
        };
        if line.group.is_none_or(|group| group.trim_matches('/').is_empty()) {
            strays.push((line.pid, uid));
        }
    }
    Ok(strays)
}

/// Returns the UIDs of the pods that have groups, from the daemon's list.
fn pods(text: &str) -> anyhow::Result<BTreeSet<String>> {
    let mut uids = BTreeSet::new();
    for line in text.lines() {
        let line: Line = serde_json::from_str(line)?;
        let uid = line
            .group
            .trim_matches('/')
            .strip_prefix(PODS)
            .and_then(|rest| rest.strip_prefix('/'));
        if let Some(uid) = uid.filter(|uid| line.device.is_none() && !uid.contains('/')) {
            uids.insert(uid.to_owned());
        }
    }
    Ok(uids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_without_nvml_are_unhealthy() {
        let devices = "0 GPU-a 00000000:01:00.0 8589934592 Simulated GPU\n1 GPU-b 0:2:0.0 7 B\nodd\n";
        let stats = "0 memory_total=8589934592 memory_used=5 temperature=unknown\n1 memory_used=unknown\n";
        let cards = cards(devices, stats);
        assert_eq!(cards.len(), 2);
        assert_eq!((cards[0].uuid.as_str(), cards[0].total), ("GPU-a", 8 << 30));
        assert_eq!(cards[0].pci, "00000000:01:00.0");
        assert!(cards[0].is_healthy && !cards[1].is_healthy);
    }

    #[test]
    fn whole_card_lifts_the_limit_over_all_cards() {
        let terms = |limits: &[(&str, Option<u64>)]| Terms {
            limits: limits
                .iter()
                .map(|(uuid, limit)| ((*uuid).to_owned(), *limit))
                .collect(),
            settings: Vec::new(),
        };
        assert_eq!(sum(&terms(&[("a", Some(3)), ("b", Some(4))])), "7");
        assert_eq!(sum(&terms(&[("a", Some(3)), ("b", None)])), "max");
    }

    #[test]
    fn strays_are_processes_of_pods_in_no_group() {
        let line = |pid: u32, device: &str, group: &str| {
            format!(
                "{{\"pid\":\"{pid}\",\"device\":{device},\"uid\":0,\"comm\":\"a\"{group},\"files\":{{}}}}\n"
            )
        };
        let text = [
            line(1, "null", ""),
            line(1, "\"0\"", ""),
            line(2, "null", ",\"group\":\"pods/u2\""),
            line(3, "null", ",\"group\":\"pods/u3/part\""),
            line(5, "null", ",\"group\":\"moved/by/root\""),
            line(6, "null", ""),
            line(7, "null", ",\"group\":\"/\""),
        ];
        let pod_of = |pid: &str| (pid != "6").then(|| format!("u{pid}"));
        let found = strays(&text.concat(), pod_of).unwrap();
        let pids: Vec<_> = found
            .iter()
            .map(|(pid, uid)| (pid.as_str(), uid.as_str()))
            .collect();
        assert_eq!(pids, [("1", "u1"), ("7", "u7")]);
    }

    #[test]
    fn only_groups_directly_below_pods_are_of_pods() {
        let text = concat!(
            "{\"group\":\"pods\",\"device\":null,\"uid\":0,\"files\":{}}\n",
            "{\"group\":\"pods/u1\",\"device\":null,\"uid\":0,\"files\":{}}\n",
            "{\"group\":\"pods/u1\",\"device\":\"0\",\"uid\":0,\"files\":{}}\n",
            "{\"group\":\"pods/u1/x\",\"device\":null,\"uid\":0,\"files\":{}}\n",
            "{\"group\":\"podsu2\",\"device\":null,\"uid\":0,\"files\":{}}\n",
        );
        assert_eq!(pods(text).unwrap().into_iter().collect::<Vec<_>>(), ["u1"]);
        assert!(pods("odd").is_err());
    }
}
