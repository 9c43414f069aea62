//! A job's shards as limits: N of the M shards of a GPU are N/M of its memory and of its time.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use gcgroup_client::node::Device;

/// Period of a time limit, microseconds.
const PERIOD: u64 = 100_000;

/// Generic resources that a job was given on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) has_gpus: bool,
    pub(crate) shards: Option<Shards>,
}

/// Shards that a job was given on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shards {
    pub(crate) count: u64,
    /// Number of shards of each GPU.
    pub(crate) per_gpu: u64,
    /// Indices of the GPUs that they are on.
    pub(crate) gpus: BTreeSet<usize>,
}

/// Limits of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes.
    pub(crate) memory: u64,
    /// As `compute.max` takes it.
    pub(crate) time: String,
}

impl Allocation {
    /// Parses what the controller shows of a job on a node, such as `gpu:h200:1(IDX:0),shard:h200:2(IDX:0)`,
    /// in newer versions `shard:h200:2(2/8,0/8)`; and of the node, such as `gpu:h200:2(S:0),shard:h200:16`.
    ///
    /// # Errors
    /// There are shards, and the text does not say on which GPUs, or how many each GPU has.
    pub(crate) fn parse(of_job: &str, of_node: &str) -> anyhow::Result<Self> {
        let (job, node) = (resources(of_job), resources(of_node));
        let total = |name: &str| -> u64 {
            let named = node.iter().filter(|resource| resource.name == name);
            named.map(|resource| resource.count).sum()
        };
        let has_gpus = job
            .iter()
            .any(|resource| resource.name == "gpu" && resource.count > 0);
        let mut shards: Option<Shards> = None;
        for resource in job.iter().filter(|job| job.name == "shard" && job.count > 0) {
            let unclear = || format!("where the shards {of_job:?} are is unclear");
            let (gpus, per_gpu) = match resource.fractions() {
                Some(fractions) => fractions,
                None => (
                    resource.indices().with_context(unclear)?,
                    total("shard").checked_div(total("gpu")).unwrap_or(0),
                ),
            };
            ensure!(!gpus.is_empty() && per_gpu > 0, unclear());
            let all = shards.get_or_insert(Shards {
                count: 0,
                per_gpu,
                gpus: BTreeSet::new(),
            });
            all.count += resource.count;
            all.gpus.extend(gpus);
        }
        Ok(Self { has_gpus, shards })
    }

    /// Returns whether the job was given GPUs or shards.
    pub(crate) fn is_any(&self) -> bool {
        self.has_gpus || self.shards.is_some()
    }
}

impl Shards {
    /// Returns the limits of `count` of these shards. GPUs of different sizes count as the smallest one.
    ///
    /// # Errors
    /// The daemon does not know one of the GPUs.
    pub(crate) fn limits(&self, count: u64, devices: &[Device]) -> anyhow::Result<Limits> {
        let mut memory = u64::MAX;
        for gpu in &self.gpus {
            let device = devices.iter().find(|device| device.index == *gpu);
            let device =
                device.with_context(|| format!("the daemon knows no GPU {gpu}, on which the shards are"))?;
            let total = device
                .memory
                .total
                .context("the daemon does not tell a GPU's memory")?;
            memory = memory.min(total);
        }
        let part = |whole: u64| {
            let part = u128::from(whole) * u128::from(count) / u128::from(self.per_gpu.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        Ok(Limits {
            memory: part(memory),
            time: format!("{} {PERIOD}", part(PERIOD).max(1)),
        })
    }
}

#[derive(Debug)]
struct Resource<'a> {
    name: &'a str,
    count: u64,
    /// Text in parentheses after the count.
    detail: &'a str,
}

impl Resource<'_> {
    /// Parses `IDX:0,2-3`.
    fn indices(&self) -> Option<BTreeSet<usize>> {
        let mut indices = BTreeSet::new();
        for range in self.detail.strip_prefix("IDX:")?.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            if last.checked_sub(first)? >= 1024 {
                return None;
            }
            indices.extend(first..=last);
        }
        Some(indices)
    }

    /// Parses `2/8,0/8`, of all GPUs of the node in order.
    fn fractions(&self) -> Option<(BTreeSet<usize>, u64)> {
        let (mut gpus, mut per_gpu) = (BTreeSet::new(), 0);
        for (index, part) in (0..).zip(self.detail.split(',')) {
            let (count, total) = part.split_once('/')?;
            let (count, total): (u64, u64) = (count.parse().ok()?, total.parse().ok()?);
            if count > 0 {
                gpus.insert(index);
                per_gpu = total;
            }
        }
        Some((gpus, per_gpu))
    }
}

/// Splits `NAME[:TYPE]:COUNT[(DETAIL)],...`.
fn resources(text: &str) -> Vec<Resource<'_>> {
    let mut resources = Vec::new();
    let (mut depth, mut start) = (0_i32, 0);
    for (at, letter) in text.char_indices().chain([(text.len(), ',')]) {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                resources.extend(text.get(start..at).and_then(resource));
                start = at + 1;
            }
            _ => {}
        }
    }
    resources
}

fn resource(text: &str) -> Option<Resource<'_>> {
    let (head, detail) = text.split_once('(').unwrap_or((text, ""));
    let (name, rest) = head.split_once(':')?;
    let count = rest.rsplit(':').next()?.parse().ok()?;
    Some(Resource {
        name,
        count,
        detail: detail.trim_end_matches(')'),
    })
}

#[cfg(test)]
mod tests {
    use gcgroup_client::node::devices;

    use super::*;

    const NODE: &str = "gpu:h200:2(S:0-1),shard:h200:16(S:0-1)";

    fn shards(count: u64, per_gpu: u64, gpus: &[usize]) -> Option<Shards> {
        let gpus = gpus.iter().copied().collect();
        Some(Shards { count, per_gpu, gpus })
    }

    #[test]
    fn shards_of_both_formats_are_read() {
        for (job, has_gpus, wanted) in [
            ("", false, None),
            ("(null)", false, None),
            ("gpu:h200:1(IDX:0)", true, None),
            ("shard:2(IDX:0)", false, shards(2, 8, &[0])),
            ("shard:h200:2(IDX:1)", false, shards(2, 8, &[1])),
            ("shard:12(IDX:0-1)", false, shards(12, 8, &[0, 1])),
            ("gpu:1(IDX:0),shard:h200:2(0/4,2/4)", true, shards(2, 4, &[1])),
        ] {
            let allocation = Allocation::parse(job, NODE).unwrap();
            assert_eq!(
                (allocation.has_gpus, allocation.shards),
                (has_gpus, wanted),
                "{job}"
            );
        }
        for (job, node) in [
            ("shard:2", NODE),
            ("shard:2(IDX:)", NODE),
            ("shard:2(IDX:1-0)", NODE),
            ("shard:2(IDX:0)", "shard:4"),
        ] {
            assert!(Allocation::parse(job, node).is_err(), "{job} {node}");
        }
    }

    #[test]
    fn shards_are_fractions_of_memory_and_time() {
        let devices = devices(
            "0 GPU-a 0000:01:00.0 9000 A name\n1 GPU-b 0000:02:00.0 6000 B\njunk\n",
            "",
        );
        assert_eq!(devices.len(), 2);
        let both = shards(12, 8, &[0, 1]).unwrap();
        let limits = |memory, time: &str| Limits {
            memory,
            time: time.to_owned(),
        };
        assert_eq!(both.limits(12, &devices).unwrap(), limits(9000, "150000 100000"));
        let first = shards(1, 3, &[0]).unwrap();
        assert_eq!(first.limits(1, &devices).unwrap(), limits(3000, "33333 100000"));
        assert!(shards(1, 3, &[2]).unwrap().limits(1, &devices).is_err());
    }
}
