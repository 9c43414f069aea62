//! The mount's connection to the kernel. It outlives a daemon that is killed: the service manager stores
//! /dev/fuse, and memory with what the next daemon must know.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use tracing::{info, warn};

use crate::mount::Mount;
use crate::slots::Slots;
use gcgroupfs_sys::manager::{self, Stored};

/// Names of the stored descriptors.
const NAMES: [&str; 4] = ["device", "init", "processes", "pollers"];

/// A mount, and what its daemon needs to answer requests.
#[derive(Debug)]
pub struct Connection {
    mount: Mount,
    /// The open /dev/fuse.
    pub(super) device: OwnedFd,
    /// FUSE_INIT, which only the first daemon could read from the device.
    pub(super) init: Vec<u8>,
    /// Memory with the mount's device number (8 bytes) and FUSE_INIT.
    memory: File,
    /// Governed processes.
    pub(super) processes: Arc<Slots<24>>,
    /// Polled files.
    pub(super) pollers: Arc<Slots<8>>,
    /// Whether an earlier daemon has served it.
    pub(super) is_taken_over: bool,
}

impl Connection {
    /// Continues with the mount at `point` of a daemon that was killed, or else mounts there as
    /// [`Mount::new`]. A new mount is unmounted on drop until it is [stored](Self::store).
    ///
    /// # Errors
    /// Those of [`Mount::new`]; out of memory or descriptors.
    pub fn open(stored: &mut Stored, point: &Path, source: &Path, allow_other: bool) -> io::Result<Self> {
        if let Some(kept) = Self::take_over(stored, point, source) {
            return Ok(kept);
        }
        let memory = |name| memfd_create(name, MFdFlags::MFD_CLOEXEC).map(File::from);
        let (first, processes, pollers) = (memory("init")?, memory("processes")?, memory("pollers")?);
        let (mount, device) = Mount::new(point, source, allow_other)?;
        let init = first_message(&device)?;
        first.write_all_at(&[&mount.device().to_ne_bytes(), init.as_slice()].concat(), 0)?;
        Ok(Self {
            mount,
            device,
            init,
            memory: first,
            processes: Arc::new(Slots::new(processes)),
            pollers: Arc::new(Slots::new(pollers)),
            is_taken_over: false,
        })
    }

    /// Returns the mount at `point` of a daemon that was killed, if all of its descriptors are stored, and it
    /// is still mounted there with this `source` and connected. Otherwise the manager closes them.
    pub fn take_over(stored: &mut Stored, point: &Path, source: &Path) -> Option<Self> {
        let files = NAMES.map(|name| stored.take(name));
        if files.iter().all(Option::is_none) {
            return None;
        }
        let kept = Self::again(files.into_iter().flatten().collect(), point, source);
        match kept.inspect_err(|error| warn!("cannot look for the mount: {error}")) {
            Ok(Some(kept)) => {
                info!("continuing with the mount at {}", kept.mount.point().display());
                return Some(kept);
            }
            // The manager would pass them on to each daemon.
            _ => NAMES.iter().for_each(|name| manager::forget(name)),
        }
        None
    }

    fn again(files: Vec<OwnedFd>, point: &Path, source: &Path) -> io::Result<Option<Self>> {
        let Ok(files) = <[OwnedFd; NAMES.len()]>::try_from(files) else {
            return Ok(None);
        };
        let [device, memory, processes, pollers] = files;
        let (mut memory, mut bytes) = (File::from(memory), Vec::new());
        memory.rewind()?;
        memory.read_to_end(&mut bytes)?;
        let Some((number, init)) = bytes.split_first_chunk() else {
            return Ok(None);
        };
        let Some(mount) = Mount::again(point, source, u64::from_ne_bytes(*number), &device)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            mount,
            device,
            init: init.to_vec(),
            memory,
            processes: Arc::new(Slots::new(processes.into())),
            pollers: Arc::new(Slots::new(pollers.into())),
            is_taken_over: true,
        }))
    }

    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Has the manager store the connection, if there is a manager and the kernel sends unanswered requests
    /// again. Then the mount stays until it is [unmounted](Self::unmount).
    pub fn store(&mut self) {
        if self.is_taken_over {
            return;
        }
        if !can_resend(&self.init) {
            info!("the kernel does not support taking over a mount (Linux 6.9 or newer does)");
            return;
        }
        let [device, init, processes, pollers] = NAMES;
        if manager::store(init, &self.memory)
            && manager::store(processes, &self.processes)
            && manager::store(pollers, &self.pollers)
            && manager::store(device, &self.device)
        {
            self.mount.keep();
        }
    }

    /// Detaches the mount at once, even while clients hold files open.
    pub fn unmount(&mut self) {
        if let Err(error) = self.mount.unmount() {
            warn!("cannot unmount {}: {error}", self.mount.point().display());
        }
    }
}

/// Reads the kernel's FUSE_INIT.
fn first_message(device: &OwnedFd) -> io::Result<Vec<u8>> {
    // The kernel refuses buffers below 8 KiB.
    let mut message = vec![0; 64 << 10];
    let length = loop {
        match nix::unistd::read(device, &mut message) {
            Err(Errno::EINTR | Errno::ENOENT | Errno::EAGAIN) => {}
            result => break result?,
        }
    };
    message.truncate(length);
    Ok(message)
}

/// Returns whether the kernel that has sent this FUSE_INIT sends unanswered requests again: bit 39 of the
/// flags. The message is a `struct fuse_in_header` (40 bytes), and a `struct fuse_init_in`, whose fifth word
/// has the flags from bit 32 on.
fn can_resend(init: &[u8]) -> bool {
    const HAS_RESEND: u32 = 1 << (39 - 32);
    let flags = init.get(40 + 16..).and_then(|bytes| bytes.first_chunk().copied());
    flags.is_some_and(|flags| u32::from_ne_bytes(flags) & HAS_RESEND != 0)
}
