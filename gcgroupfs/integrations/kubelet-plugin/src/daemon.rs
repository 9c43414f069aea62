//! Client of the gcgroupfs daemon: the cards, their health, and the groups of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use gcgroup_client::Client;
use gcgroup_client::node::{DEVICE_STAT, Device, read_devices};
use serde::Deserialize;

use crate::cards::Card;
use crate::policy::{LIMIT, Setting};
use crate::processes;

mod group;

use self::group::{Group, make};

/// Group above all pods' groups. The daemon's rule puts the processes of a container into
/// `pods/UID/container-NAME`.
const PODS: &str = "pods";

/// Longest time of the requests for one task.
const LIFE: Duration = Duration::from_secs(15);

/// Most memory on each card by UUID: `None` without a limit. On cards that are missing it is 0.
pub(crate) type Limits = BTreeMap<String, Option<u64>>;

/// Limits and settings of a pod. Without settings, those in force stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Limits of all containers together.
    pub(crate) limits: Limits,
    /// Limits of each container that has been given something, by its name.
    pub(crate) containers: BTreeMap<String, Limits>,
    pub(crate) settings: Vec<Setting>,
}

impl Terms {
    /// Returns the groups of the pod and its containers, the pod's own first.
    fn groups(&self, uid: &str) -> Vec<Group<'_>> {
        let pod = format!("{PODS}/{uid}");
        let of_containers = self.containers.iter().map(|(name, limits)| Group {
            path: container_group(&pod, name),
            limits,
            settings: self.settings_of(Some(name)),
        });
        let own = Group {
            path: pod.clone(),
            limits: &self.limits,
            settings: self.settings_of(None),
        };
        std::iter::once(own).chain(of_containers).collect()
    }

    fn settings_of(&self, container: Option<&str>) -> Vec<&Setting> {
        let settings = self.settings.iter();
        settings
            .filter(|it| it.container.as_deref() == container)
            .collect()
    }
}

/// Returns the group of a container, as the daemon's rule names it. The word before the name keeps it apart
/// from control files and numbers.
fn container_group(pod: &str, name: &str) -> String {
    format!("{pod}/container-{name}")
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

    fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.socket)?.within(LIFE))
    }

    /// Returns the cards. A card is healthy if NVML tells the daemon its use of memory, and has reported no
    /// critical XID error of it.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub(crate) fn cards(&self) -> anyhow::Result<Vec<Card>> {
        let mut client = self.client()?;
        // The daemon samples the cards when it is asked, and shows the sample to the next reader.
        client.get(DEVICE_STAT)??;
        Ok(cards(read_devices(&mut client)?))
    }

    /// Makes the groups of a pod and its containers with their limits and settings, or changes what differs.
    /// Returns which settings change nothing, and why; they are tried again at the next call.
    ///
    /// # Errors
    /// The daemon does not answer, or refuses a group or what is granted. That is set before anything else.
    pub(crate) fn enforce(
        &mut self,
        uid: &str,
        terms: &Terms,
        cards: &[Card],
    ) -> anyhow::Result<Vec<String>> {
        let mut client = self.client()?;
        let groups = terms.groups(uid);
        let mut is_applied = self.applied.get(uid) == Some(terms);
        for group in &groups {
            // Also tells whether the daemon still has the group.
            let total = client.get(&format!("{}/{LIMIT}", group.path))?;
            is_applied = is_applied && total.is_ok_and(|text| group.is_set(text.trim()));
        }
        if is_applied {
            return Ok(Vec::new());
        }
        self.applied.remove(uid);
        make(&mut client, PODS)?;
        for group in &groups {
            group.grant(&mut client, cards)?;
        }
        let mut refused = Vec::new();
        for group in &groups {
            for setting in &group.settings {
                if let Err(reason) = group.write(&mut client, setting)? {
                    refused.push(setting.refused(&reason));
                }
            }
        }
        if refused.is_empty() {
            self.applied.insert(uid.to_owned(), terms.clone());
        }
        Ok(refused)
    }

    /// Moves each governed process of a pod that is in no group into its pod's. Returns their pids with the
    /// UIDs: no rule of the daemon has put them there.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub(crate) fn take_in_strays(&self) -> anyhow::Result<Vec<(String, String)>> {
        let mut client = self.client()?;
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
        let mut client = self.client()?;
        let text = client.list_groups(&["gcgroup.events"])?;
        let text = text.map_err(|refusal| anyhow!("cannot list groups: {refusal}"))?;
        for (uid, groups) in pods(&text)? {
            if uids.contains(&uid) {
                continue;
            }
            for group in groups {
                // A group with processes stays until they have ended.
                let _ = client.remove(&group)?;
            }
        }
        Ok(())
    }
}

fn cards(devices: Vec<Device>) -> Vec<Card> {
    let card = |device: Device| {
        let xid = device
            .files
            .key(DEVICE_STAT, "critical_xid")
            .filter(|xid| *xid != 0);
        Some(Card {
            index: device.index.to_string(),
            uuid: device.uuid,
            pci: device.pci,
            total: device.memory.total?,
            is_healthy: device.memory.used.is_some() && xid.is_none(),
            xid,
        })
    };
    devices.into_iter().filter_map(card).collect()
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

/// Returns the groups of each pod that has some, those below first, by the pod's UID, from the daemon's list.
fn pods(text: &str) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let mut pods: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        let line: Line = serde_json::from_str(line)?;
        let path = line.group.trim_matches('/');
        let uid = path
            .strip_prefix(PODS)
            .and_then(|rest| rest.strip_prefix('/'))
            .and_then(|rest| rest.split('/').next());
        if let Some(uid) = uid.filter(|_| line.device.is_none()) {
            pods.entry(uid.to_owned()).or_default().push(path.to_owned());
        }
    }
    for groups in pods.values_mut() {
        groups.sort_by_key(|path| std::cmp::Reverse(path.len()));
    }
    Ok(pods)
}

#[cfg(test)]
mod tests {
    use gcgroup_client::node;

    use super::group::sum;
    use super::*;

    #[test]
    fn cards_without_nvml_or_with_xid_errors_are_unhealthy() {
        let devices = "0 GPU-a 00000000:01:00.0 8589934592 Simulated GPU\n1 GPU-b 0:2:0.0 7 B\nodd\n2 GPU-c 0:3:0.0 7 B\n";
        let stats = "0 memory_total=8589934592 memory_used=5 temperature=unknown critical_xid=0\n\
            1 memory_used=unknown critical_xid=unknown\n2 memory_used=5 critical_xid=79\n";
        let cards = cards(node::devices(devices, stats));
        assert_eq!(cards.len(), 3);
        assert_eq!((cards[2].is_healthy, cards[2].xid), (false, Some(79)));
        assert_eq!((cards[0].uuid.as_str(), cards[0].total), ("GPU-a", 8 << 30));
        assert_eq!(cards[0].pci, "00000000:01:00.0");
        assert!(cards[0].is_healthy && !cards[1].is_healthy);
    }

    fn limits(limits: &[(&str, Option<u64>)]) -> Limits {
        let limits = limits.iter();
        limits.map(|(uuid, limit)| ((*uuid).to_owned(), *limit)).collect()
    }

    #[test]
    fn whole_card_lifts_the_limit_over_all_cards() {
        assert_eq!(sum(&limits(&[("a", Some(3)), ("b", Some(4))])), Some(7));
        assert_eq!(sum(&limits(&[("a", Some(3)), ("b", None)])), None);
    }

    #[test]
    fn pod_has_a_group_above_those_of_its_containers() {
        let terms = Terms {
            limits: limits(&[("a", Some(5))]),
            containers: [("7", 2), ("main", 3)]
                .map(|(name, limit)| (name.to_owned(), limits(&[("a", Some(limit))])))
                .into(),
            settings: Vec::new(),
        };
        let groups = terms.groups("u").into_iter();
        let groups: Vec<_> = groups.map(|group| (group.path, sum(group.limits))).collect();
        let expected = [
            ("pods/u", Some(5)),
            ("pods/u/container-7", Some(2)),
            ("pods/u/container-main", Some(3)),
        ];
        assert_eq!(groups, expected.map(|(group, sum)| (group.to_owned(), sum)));
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
    fn groups_below_pods_are_listed_with_the_lowest_first() {
        let text = concat!(
            "{\"group\":\"pods\",\"device\":null,\"uid\":0,\"files\":{}}\n",
            "{\"group\":\"pods/u1\",\"device\":null,\"uid\":0,\"files\":{}}\n",
            "{\"group\":\"pods/u1\",\"device\":\"0\",\"uid\":0,\"files\":{}}\n",
            "{\"group\":\"pods/u1/x\",\"device\":null,\"uid\":0,\"files\":{}}\n",
            "{\"group\":\"podsu2\",\"device\":null,\"uid\":0,\"files\":{}}\n",
        );
        let pods = pods(text).unwrap();
        assert_eq!(pods.len(), 1);
        assert_eq!(pods["u1"], ["pods/u1/x", "pods/u1"]);
        assert!(super::pods("odd").is_err());
    }
}
