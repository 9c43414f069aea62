//! Tests several GPUs: each is charged for its own memory, however the program numbers them and whichever is
//! current.

mod charges;
mod freeze;
mod graphs;
mod limits;
mod visible;

use std::process::Command;

use support::{Config, Governed, Mount, c_program, wait_until};

use crate::driver::Dir;

pub(crate) const MIB: u64 = 1 << 20;
const OUT_OF_MEMORY: u64 = 2;
pub(crate) const NO_DEVICE: u64 = 100;
const INVALID_CONTEXT: u64 = 201;

/// A running `programs/devices.c`.
pub(crate) struct Devices(pub(crate) Governed);

impl Devices {
    #[track_caller]
    pub(crate) fn spawn(command: Command) -> Self {
        let mut program = Governed::spawn(command);
        program.expect("ready");
        Self(program)
    }

    /// Starts a governed, initialised process.
    #[track_caller]
    pub(crate) fn start(mount: &Mount) -> Self {
        let mut devices = Self::spawn(mount.command(program()));
        devices.ok("init");
        devices
    }

    /// Starts a governed process with a context of its own on each of `count` devices; the last is current.
    #[track_caller]
    fn on(mount: &Mount, count: u64) -> Self {
        let mut devices = Self::start(mount);
        devices.contexts(count);
        devices
    }

    /// Asserts that a command on a frozen device waits until the device is thawed, and thaws it. Returns the
    /// answer.
    #[track_caller]
    fn waits_for(&mut self, frozen: &Dir<'_>, command: &str) -> String {
        let waited = || frozen.key("compute.stat", "nr_frozen");
        let before = waited();
        self.0.say(command);
        wait_until("the command waits at the gate", || waited() > before);
        assert!(frozen.is_frozen(), "{command}");
        assert_eq!(self.0.line_now(), None, "{command}");
        frozen.write("compute.freeze", 0);
        let answer = self.0.line();
        assert_eq!(waited(), before + 1, "{command}");
        answer.unwrap_or_else(|| panic!("{command}: the program has ended"))
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str) -> Vec<u64> {
        let answer = self.0.ask(command);
        let number = |number: &str| number.parse().unwrap_or_else(|_| panic!("{command}: {answer}"));
        answer.split(' ').map(number).collect()
    }

    /// Returns the value of a call that must succeed.
    #[track_caller]
    pub(crate) fn ok(&mut self, command: &str) -> u64 {
        let answer = self.ask(command);
        assert_eq!(answer[0], 0, "{command}: {answer:?}");
        answer.get(1).copied().unwrap_or(0)
    }

    #[track_caller]
    pub(crate) fn refused(&mut self, command: &str) {
        assert_eq!(self.ask(command)[0], OUT_OF_MEMORY, "{command}");
    }

    /// Creates a context on each of `count` devices in order; the last is current.
    #[track_caller]
    pub(crate) fn contexts(&mut self, count: u64) {
        for device in 0..count {
            assert_eq!(self.ok(&format!("create {device}")), device);
        }
    }
}

pub(crate) fn program() -> std::path::PathBuf {
    c_program("devices.c", &["-pthread", "-ldl"])
}

fn gpus(count: u32) -> Mount {
    Mount::with(Config::default().env("SIMGPU_DEVICES", count))
}

/// Returns `memory.current` of each device.
#[track_caller]
fn charged(dir: &Dir<'_>, count: u32) -> Vec<u64> {
    (0..count)
        .map(|index| dir.gpu(index).number("memory.current"))
        .collect()
}

/// Charges that calls leave beyond contexts, for each device in MiB.
struct Charges<'m> {
    dir: Dir<'m>,
    before: Vec<u64>,
}

impl<'m> Charges<'m> {
    #[track_caller]
    fn of(mount: &'m Mount, devices: &Devices, count: u32) -> Self {
        let dir = Dir::of(mount, devices.0.pid());
        let before = ledger(&dir, count);
        Self { dir, before }
    }

    /// Returns the MiB charged since `before`, for each device.
    #[track_caller]
    fn since(&self) -> Vec<u64> {
        let count = u32::try_from(self.before.len()).expect("the number of devices fits");
        let now = ledger(&self.dir, count);
        let since = now
            .iter()
            .zip(&self.before)
            .map(|(now, before)| now.wrapping_sub(*before));
        since.map(|bytes| bytes / MIB).collect()
    }
}

/// Returns `memory.current` without the memory of contexts, for each device.
#[track_caller]
fn ledger(dir: &Dir<'_>, count: u32) -> Vec<u64> {
    let one = |index| {
        let gpu = dir.gpu(index);
        ["linear", "managed", "pool", "vmm", "array"]
            .into_iter()
            .map(|kind| gpu.key("memory.stat", kind))
            .sum()
    };
    (0..count).map(one).collect()
}

/// Returns the UUIDs in the daemon's order.
pub(crate) fn uuids(mount: &Mount) -> Vec<String> {
    let devices = mount.read("", "devices");
    let uuid = |line: &str| line.split(' ').nth(1).expect("a UUID").to_owned();
    devices.lines().map(uuid).collect()
}
