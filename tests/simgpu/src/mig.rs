//! Devices divided into MIG instances.
//!
//! An instance is a separate device with memory and compute slices of its own. Its index on the machine
//! follows those of all whole devices. A device in MIG mode does no work itself.

use crate::size::parse_bytes;

/// Maximum number of devices of a machine, MIG instances included.
pub const MAX_DEVICES: usize = 16;

/// Compute slices of a device, and so the maximum number of its instances.
pub const MAX_INSTANCES: u32 = 7;

/// One MIG instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    /// Index of the parent device.
    pub parent: usize,
    /// Compute slices, 1 to [`MAX_INSTANCES`].
    pub slices: u32,
    /// Bytes of memory. 0: no such instance.
    pub memory: u64,
}

/// MIG configuration of a machine (`SIMGPU_MIG`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mig {
    /// One bit per device in MIG mode; such a device may have no instances.
    enabled: u64,
    instances: [Instance; MAX_DEVICES],
}

impl Mig {
    /// Parses a list of `DEVICE:INSTANCES`, separated by semicolons. INSTANCES is a number of equal parts, 0
    /// to [`MAX_INSTANCES`] (`0:3`), or a list of profiles: compute slices and bytes of memory
    /// (`0:1g.5gb,2g.10gb`). `None` if the list is invalid or exceeds the devices' capacity.
    pub(crate) fn parse(text: &str, devices: usize, memory: u64) -> Option<Mig> {
        let mut mig = Mig::default();
        let mut next = 0;
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let (device, instances) = part.split_once(':')?;
            let parent = device.trim().parse().ok().filter(|device| *device < devices)?;
            if mig.is_enabled(parent) {
                return None;
            }
            mig.enabled |= 1 << parent;
            for (slices, memory) in profiles(instances.trim(), memory)? {
                let place = mig
                    .instances
                    .get_mut(next)
                    .filter(|_| next + devices < MAX_DEVICES)?;
                *place = Instance {
                    parent,
                    slices,
                    memory,
                };
                next += 1;
            }
        }
        Some(mig)
    }

    /// Returns whether a device is in MIG mode.
    pub fn is_enabled(&self, device: usize) -> bool {
        device < MAX_DEVICES && self.enabled & 1 << device != 0
    }

    /// Returns whether any device is in MIG mode.
    pub fn is_anywhere(&self) -> bool {
        self.enabled != 0
    }

    /// Returns the instances in the order of their indices.
    pub fn instances(&self) -> impl Iterator<Item = Instance> {
        self.instances
            .into_iter()
            .take_while(|instance| instance.memory != 0)
    }

    /// Encodes the configuration as the words of the state file.
    pub(crate) fn words(&self) -> [u64; 2 * MAX_DEVICES + 1] {
        let mut words = [0; 2 * MAX_DEVICES + 1];
        let (first, rest) = words.split_at_mut(1);
        first[0] = self.enabled;
        for (pair, instance) in rest.chunks_exact_mut(2).zip(&self.instances) {
            pair[0] = (instance.parent as u64) << 32 | u64::from(instance.slices);
            pair[1] = instance.memory;
        }
        words
    }

    /// Decodes the words of the state file.
    pub(crate) fn of_words(words: [u64; 2 * MAX_DEVICES + 1]) -> Mig {
        let (first, rest) = words.split_at(1);
        let mut mig = Mig {
            enabled: first[0],
            ..Mig::default()
        };
        for (instance, pair) in mig.instances.iter_mut().zip(rest.chunks_exact(2)) {
            *instance = Instance {
                parent: usize::try_from(pair[0] >> 32).unwrap_or(usize::MAX),
                slices: u32::try_from(pair[0] & u64::from(u32::MAX)).unwrap_or(0),
                memory: pair[1],
            };
        }
        mig
    }
}

/// Returns the slices and the bytes of memory of each instance of one device.
fn profiles(text: &str, memory: u64) -> Option<Vec<(u32, u64)>> {
    if let Ok(count) = text.parse::<u32>() {
        if count > MAX_INSTANCES {
            return None;
        }
        let one = |count| (MAX_INSTANCES / count, memory / u64::from(count));
        return Some((0..count).map(|_| one(count)).collect());
    }
    let mut profiles = Vec::new();
    for profile in text.split(',') {
        let (slices, bytes) = profile.trim().split_once("g.")?;
        let bytes = parse_bytes(bytes).filter(|bytes| *bytes != 0)?;
        profiles.push((slices.parse().ok().filter(|slices| *slices != 0)?, bytes));
    }
    let slices: u32 = profiles.iter().map(|(slices, _)| slices).sum();
    let bytes = profiles
        .iter()
        .try_fold(0_u64, |sum, (_, bytes)| sum.checked_add(*bytes))?;
    (slices <= MAX_INSTANCES && bytes <= memory).then_some(profiles)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn instances(text: &str) -> Option<Vec<(usize, u32, u64)>> {
        let mig = Mig::parse(text, 2, 16 * GIB)?;
        assert_eq!(Mig::of_words(mig.words()), mig);
        let instances = mig.instances();
        Some(
            instances
                .map(|it| (it.parent, it.slices, it.memory / GIB))
                .collect(),
        )
    }

    #[test]
    fn device_is_divided_into_equal_parts_or_by_profiles() {
        assert_eq!(instances(""), Some(vec![]));
        assert_eq!(instances("0:2"), Some(vec![(0, 3, 8), (0, 3, 8)]));
        assert_eq!(
            instances("1:1g.5gb,2g.10gb; 0:1"),
            Some(vec![(1, 1, 5), (1, 2, 10), (0, 7, 16)])
        );
        assert!(Mig::parse("1:0", 2, GIB).is_some_and(|mig| mig.is_enabled(1) && !mig.is_enabled(0)));
    }

    #[test]
    fn impossible_division_is_refused() {
        for text in [
            "0",
            "2:1",
            "0:8",
            "0:1;0:1",
            "0:1g",
            "0:0g.1gb",
            "0:1g.17gb",
            "0:4g.1gb,4g.1gb",
        ] {
            assert_eq!(instances(text), None, "{text}");
        }
    }
}
