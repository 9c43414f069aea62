//! The descriptors of the supervisor that the service manager stores (`FileDescriptorStoreMax`): they outlive
//! a supervisor that is killed, and with them the mount, its open files and sleeping readers.

use std::os::fd::OwnedFd;
use std::path::Path;

use tracing::{info, warn};

use super::service;
use gcgroupfs_fuse::mount::Mount;
use gcgroupfs_fuse::supervisor_state::{NAMES, SupervisorState};

/// Beginning of the names under which descriptors are stored. The name of /dev/fuse ends with the mount's
/// device number.
const PREFIX: &str = "gcgroup-";

/// The mount of a supervisor that was killed, and the descriptors in the order of [`NAMES`].
pub(super) struct Kept {
    pub(super) mount: Mount,
    pub(super) files: [OwnedFd; NAMES.len()],
}

/// Returns the mount at `point` of a supervisor that was killed, if the manager has stored all of its
/// descriptors and the mount is still there.
pub(super) fn take(point: &Path, socket: &Path) -> Option<Kept> {
    let mut stored = service::stored();
    if stored.is_empty() {
        return None;
    }
    let names: Vec<String> = stored.iter().map(|(name, _)| name.clone()).collect();
    let mut number = None;
    let files = NAMES.map(|name| {
        let name = format!("{PREFIX}{name}");
        let at = stored.iter().position(|(stored, _)| {
            let (stored, after) = stored.split_once('.').unwrap_or((stored, ""));
            number = after.parse::<u64>().ok().filter(|_| stored == name).or(number);
            stored == name
        });
        at.map(|at| stored.swap_remove(at).1)
    });
    let files: Vec<OwnedFd> = files.into_iter().flatten().collect();
    let files: Option<[OwnedFd; NAMES.len()]> = files.try_into().ok();
    let kept = files.zip(number).and_then(|(files, number)| {
        let [device, ..] = &files;
        let mount = Mount::again(point, socket, number, device);
        let mount = mount.inspect_err(|error| warn!("cannot look for the mount: {error}"));
        Some(Kept {
            mount: mount.ok()??,
            files,
        })
    });
    match &kept {
        Some(kept) => info!("continuing with the mount at {}", kept.mount.point().display()),
        // The manager would pass them on to each supervisor.
        None => names.iter().for_each(|name| service::forget(name)),
    }
    kept
}

/// Has the manager store the descriptors, if it has room for them.
pub(super) fn put(state: &SupervisorState, number: u64) {
    for (name, file) in NAMES.into_iter().zip(state.files()) {
        service::store(&stored_name(name, number), file);
    }
}

/// Has the manager close the descriptors, since the mount is gone.
pub(super) fn remove(number: u64) {
    for name in NAMES {
        service::forget(&stored_name(name, number));
    }
}

fn stored_name(name: &str, number: u64) -> String {
    match name {
        "device" => format!("{PREFIX}{name}.{number}"),
        name => format!("{PREFIX}{name}"),
    }
}
