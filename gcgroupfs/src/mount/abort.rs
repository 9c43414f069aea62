//! Breaking a connection that nobody answers over.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use nix::mount::{MntFlags, umount2};
use nix::sys::stat::minor;

use super::mounts;

/// Where the kernel shows its FUSE connections, in directories named by the device numbers' minors.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Has those who wait for an answer from the mount of this device number get an error, and what writes to its
/// connection come back. Another mount at `point` is left alone.
pub fn abort(point: &Path, device: u64) {
    let file = format!("{CONNECTIONS}/{}/abort", minor(device));
    // It belongs to who has mounted it. Opened for writing alone, so that nothing is made where it is not.
    let done = OpenOptions::new()
        .write(true)
        .open(file)
        .and_then(|mut file| file.write_all(b"1"));
    let is_there = || mounts(point).is_ok_and(|all| all.last().is_some_and(|top| top.device == device));
    if done.is_err() && is_there() {
        // It says EBUSY if somebody has a file open there, and has ended the connection by then.
        let _ = umount2(point, MntFlags::MNT_FORCE | MntFlags::UMOUNT_NOFOLLOW);
    }
}
