//! Estimated energy of a process: the power of each GPU times the GPU time that the process was charged.

/// Energy of a process, from samples of the power of the GPUs.
#[derive(Debug, Clone, Default)]
pub(super) struct Energy {
    nanojoules: u64,
    /// GPU time that is accounted for, by device, nanoseconds.
    seen: Vec<u64>,
}

impl Energy {
    /// Begins with `nanojoules`, after the GPU time charged so far on each device.
    pub(super) fn new(nanojoules: u64, seen: impl Iterator<Item = u64>) -> Self {
        Self {
            nanojoules,
            seen: seen.collect(),
        }
    }

    pub(super) fn nanojoules(&self) -> u64 {
        self.nanojoules
    }

    /// Accounts for the GPU time on a device since the last call, given that charged so far (nanoseconds) and
    /// the power of the device.
    pub(super) fn account(&mut self, device: usize, charged: u64, milliwatts: u32) {
        if self.seen.len() <= device {
            self.seen.resize(device + 1, 0);
        }
        let before = std::mem::replace(&mut self.seen[device], charged);
        let used = charged.saturating_sub(before);
        let nanojoules = u128::from(used) * u128::from(milliwatts) / 1000;
        let nanojoules = u64::try_from(nanojoules).unwrap_or(u64::MAX);
        self.nanojoules = self.nanojoules.saturating_add(nanojoules);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_accounted_once_at_the_power_of_its_gpu() {
        let mut energy = Energy::new(1, [1_000_000_000].into_iter());
        energy.account(0, 3_000_000_000, 100_000);
        energy.account(1, 9_000_000_000, 0);
        energy.account(0, 3_500_000_000, 100_000);
        assert_eq!(energy.nanojoules(), 250_000_000_001);
        energy.account(0, 0, u32::MAX);
        energy.account(0, u64::MAX, u32::MAX);
        assert_eq!(energy.nanojoules(), u64::MAX);
    }
}
