//! Tests that nothing is measured while a process may charge by the device numbers of an earlier daemon.

use std::fs::{self, File};
use std::mem::{offset_of, size_of};
use std::os::unix::fs::FileExt as _;

use gcgroup_abi::message::RegistrationReply;
use gcgroup_abi::{OTHER_DEVICE, Usage, UsageDevice, VERSION};
use support::{Mount, wait_until};

use crate::answers::Answers;
use crate::driver::{DriverShell, driver_shell};

/// Returns how many changes of the ledger are under way that count for every device.
fn changes(usage: &File) -> u32 {
    let at = offset_of!(Usage, devices)
        + OTHER_DEVICE * size_of::<UsageDevice>()
        + offset_of!(UsageDevice, unsettled);
    let mut word = [0; 4];
    // The low half of the word, on a little-endian machine.
    usage
        .read_exact_at(&mut word, at as u64)
        .expect("the block is larger");
    u32::from_le_bytes(word)
}

#[test]
fn nothing_is_measured_before_devices_are_renumbered() {
    let mut mount = Mount::new();
    let command = mount.command(driver_shell());
    mount.kill9();
    fs::remove_file(mount.socket()).expect("the file can be removed");
    let daemon = Answers::at(&mount.socket());
    let (usage, shell) = std::thread::scope(|scope| {
        let socket = mount.socket();
        let registration = scope.spawn(move || {
            let waiting = daemon.accept();
            assert_eq!(changes(&waiting.usage), 1, "before the answer");
            let usage = waiting.usage.try_clone().expect("a descriptor");
            // No later attempt reaches a daemon.
            fs::remove_file(socket).expect("the file can be removed");
            let status = libc::EPERM.unsigned_abs();
            let reply = RegistrationReply {
                abi: VERSION,
                status,
                bars_cuda: false,
            };
            waiting.answer(reply, None);
            usage
        });
        let shell = DriverShell::spawn(command);
        (
            registration.join().expect("the thread ends without a panic"),
            shell,
        )
    });
    wait_until("the attempt has ended", || changes(&usage) == 0);
    shell.quit();
}
