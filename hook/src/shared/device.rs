//! Devices of the program and their slots in the shared blocks.
//!
//! The program numbers devices in its own way (`CUDA_VISIBLE_DEVICES`), the daemon by NVML; the UUID relates
//! the two. Without a daemon, and for devices unknown to it, the slot is [`OTHER_DEVICE`].

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use gcgroup_abi::{Control, MAX_DEVICES, OTHER_DEVICE};
use parking_lot::Mutex;

use crate::driver;
use crate::driver::cuda::{CUdevice, CUuuid};

/// A device by the program's number, from zero: a `CUdevice`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct LocalDevice(u8);

impl LocalDevice {
    /// Converts a `CUdevice`; `None` unless it is below [`MAX_DEVICES`].
    pub(crate) fn of(device: CUdevice) -> Option<Self> {
        let number = u8::try_from(device).ok()?;
        (usize::from(number) < MAX_DEVICES).then_some(Self(number))
    }

    /// Converts back from [`Self::number`].
    pub(crate) fn from_number(number: u8) -> Self {
        Self(number)
    }

    pub(crate) fn number(self) -> u8 {
        self.0
    }

    pub(crate) fn device(self) -> CUdevice {
        self.0.into()
    }
}

/// Returns the two words of a UUID as in `ControlDevice::uuid`.
pub(crate) fn uuid_words(uuid: CUuuid) -> [u64; 2] {
    let both = u128::from_le_bytes(uuid.bytes);
    #[expect(clippy::cast_possible_truncation, reason = "the halves are what is wanted")]
    [both as u64, (both >> 64) as u64]
}

/// Returns the slot of the device with that UUID.
pub(crate) fn index_of(control: &Control, uuid: [u64; 2]) -> usize {
    let known = control.nr_devices.load(Relaxed) as usize;
    let is_it = |device: &gcgroup_abi::ControlDevice| {
        uuid != [0, 0]
            && device
                .uuid
                .iter()
                .zip(uuid)
                .all(|(has, want)| has.load(Relaxed) == want)
    };
    control
        .devices
        .iter()
        .take(known.min(OTHER_DEVICE))
        .position(is_it)
        .unwrap_or(OTHER_DEVICE)
}

#[derive(Debug)]
struct KnownDevice {
    /// Zero: the driver has not been asked yet.
    is_known: AtomicU32,
    index: AtomicU32,
    uuid: [AtomicU64; 2],
}

#[derive(Debug)]
pub(crate) struct Devices {
    known: [KnownDevice; MAX_DEVICES],
    /// Number of devices that the daemon knew at the last [`refresh`](Self::refresh).
    nr_told: AtomicU32,
    /// Held while a slot is looked up and stored, so that no slot of a replaced control block remains.
    placing: Mutex<()>,
}

impl Devices {
    pub(crate) fn new() -> Self {
        Self {
            known: std::array::from_fn(|_| KnownDevice {
                is_known: AtomicU32::new(0),
                index: AtomicU32::new(u32::try_from(OTHER_DEVICE).unwrap_or(0)),
                uuid: [const { AtomicU64::new(0) }; 2],
            }),
            nr_told: AtomicU32::new(0),
            placing: Mutex::new(()),
        }
    }

    /// Returns whether the daemon has added devices since the last refresh, such as new MIG instances.
    pub(crate) fn are_outdated(&self, control: &Control) -> bool {
        control.nr_devices.load(Acquire) != self.nr_told.load(Relaxed)
    }

    /// Returns the device's slot in the shared blocks.
    pub(crate) fn index(&self, local: LocalDevice) -> usize {
        self.known
            .get(usize::from(local.0))
            .map_or(OTHER_DEVICE, |known| known.index.load(Relaxed) as usize)
    }

    /// Returns the slots of all possible devices of the program.
    pub(crate) fn all(&self) -> [usize; MAX_DEVICES] {
        std::array::from_fn(|number| {
            let known = self.known.get(number);
            known.map_or(OTHER_DEVICE, |known| known.index.load(Relaxed) as usize)
        })
    }

    /// Returns the device's slot, asking the driver for its UUID the first time.
    pub(crate) fn learn(&self, control: &Control, local: LocalDevice) -> usize {
        let Some(known) = self.known.get(usize::from(local.0)) else {
            return OTHER_DEVICE;
        };
        if known.is_known.load(Acquire) == 0
            && let Some(uuid) = ask(local)
        {
            self.enter(control, local, uuid_words(uuid));
        }
        self.index(local)
    }

    /// Asks the driver again which GPUs the known devices are: it can restore a process on others. A device
    /// for which it does not answer keeps its slot.
    pub(crate) fn identify(&self, control: &Control) {
        for (number, known) in (0..).zip(&self.known) {
            let local = LocalDevice(number);
            if known.is_known.load(Acquire) != 0
                && let Some(uuid) = ask(local)
            {
                self.enter(control, local, uuid_words(uuid));
            }
        }
    }

    fn enter(&self, control: &Control, local: LocalDevice, uuid: [u64; 2]) {
        let Some(known) = self.known.get(usize::from(local.0)) else {
            return;
        };
        let _placing = self.placing.lock();
        for (word, value) in known.uuid.iter().zip(uuid) {
            word.store(value, Relaxed);
        }
        known.is_known.store(1, Release);
        known.place(control);
    }

    /// Looks up every device again, in a new control block or after devices were added.
    pub(crate) fn refresh(&self, control: &Control) {
        let _placing = self.placing.lock();
        self.nr_told.store(control.nr_devices.load(Acquire), Relaxed);
        for known in self
            .known
            .iter()
            .filter(|known| known.is_known.load(Acquire) != 0)
        {
            known.place(control);
        }
    }
}

/// Asks the driver for the UUID of a device.
fn ask(local: LocalDevice) -> Option<CUuuid> {
    let mut uuid = CUuuid::default();
    let answer = driver::cuDeviceGetUuid_v2(&mut uuid, local.device());
    let answer = answer.or_else(|_| driver::cuDeviceGetUuid(&mut uuid, local.device()));
    answer.is_ok().then_some(uuid)
}

impl KnownDevice {
    fn place(&self, control: &Control) {
        let [low, high] = &self.uuid;
        let index = index_of(control, [low.load(Relaxed), high.load(Relaxed)]);
        self.index.store(u32::try_from(index).unwrap_or(0), Release);
    }
}

#[cfg(test)]
impl Devices {
    /// Makes the device with that UUID known.
    pub(crate) fn of_test(&self, control: &Control, local: LocalDevice, uuid: [u64; 2]) {
        self.enter(control, local, uuid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::block;

    #[test]
    fn device_is_found_by_uuid() {
        let (control, _file) = block::of_daemon();
        control.nr_devices.store(2, Relaxed);
        for (device, byte) in control.devices.iter().zip([7, 9]) {
            for (word, value) in device.uuid.iter().zip(uuid_words(CUuuid { bytes: [byte; 16] })) {
                word.store(value, Relaxed);
            }
        }
        let devices = Devices::new();
        let first = LocalDevice::of(0).unwrap();
        assert_eq!(devices.index(first), OTHER_DEVICE, "nothing known yet");
        devices.enter(control, first, uuid_words(CUuuid { bytes: [9; 16] }));
        assert_eq!(devices.index(first), 1);
        devices.enter(control, first, uuid_words(CUuuid { bytes: [8; 16] }));
        assert_eq!(devices.index(first), OTHER_DEVICE);
        control.nr_devices.store(u32::MAX, Relaxed);
        devices.enter(control, first, [0, 0]);
        assert_eq!(
            devices.index(first),
            OTHER_DEVICE,
            "an empty slot matches no device"
        );
    }

    #[test]
    fn new_control_block_may_renumber_devices() {
        let (control, _file) = block::of_daemon();
        let devices = Devices::new();
        let local = LocalDevice::of(3).unwrap();
        devices.enter(control, local, [1, 2]);
        assert_eq!(devices.index(local), OTHER_DEVICE);
        control.nr_devices.store(5, Relaxed);
        control.devices[4].uuid[0].store(1, Relaxed);
        control.devices[4].uuid[1].store(2, Relaxed);
        assert!(devices.are_outdated(control));
        devices.refresh(control);
        assert_eq!(devices.index(local), 4);
        devices.identify(control);
        assert_eq!(devices.index(local), 4, "the driver does not answer");
        assert!(!devices.are_outdated(control));
        assert_eq!(LocalDevice::of(-1), None);
        assert_eq!(LocalDevice::of(64), None);
    }
}
