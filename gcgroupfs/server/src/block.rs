//! Control and usage blocks as files: creates control blocks, and maps usage blocks after strict checks.
//!
//! This module does not know what the fields mean.

use std::os::fd::OwnedFd;

use gcgroup_abi::map::{CONTROL_SIZE, USAGE_SIZE};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

use gcgroupfs_sys::{ControlMap, UsageMap};

/// Seals that fix a file's size: without them, access to a mapping can be made to fault.
const FIXED_SIZE: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_SEAL);

/// Creates an empty control block, writable only through the mapping returned.
///
/// # Errors
/// Out of memory or descriptors.
pub(crate) fn new_control() -> nix::Result<(ControlMap, OwnedFd)> {
    let file = memfd_create(
        "gcgroup-control",
        MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
    )?;
    ftruncate(&file, i64::try_from(CONTROL_SIZE).map_err(|_| Errno::EFBIG)?)?;
    let map = ControlMap::new(&file).map_err(errno)?;
    // F_SEAL_FUTURE_WRITE (Linux 5.1) does not affect the existing mapping, which is ours.
    fcntl(
        &file,
        FcntlArg::F_ADD_SEALS(FIXED_SIZE | SealFlag::F_SEAL_FUTURE_WRITE),
    )?;
    Ok((map, file))
}

/// Returns whether the file is a memfd of fixed size, whose close never blocks. Queries the seals: the kernel
/// answers that itself for every kind of file, while even fstat(2) of a file on a FUSE mount waits for its
/// server.
pub(crate) fn is_memfd(file: &OwnedFd) -> bool {
    // A file on an ordinary tmpfs has only F_SEAL_SEAL, so the other seals identify a memfd.
    fcntl(file, FcntlArg::F_GET_SEALS)
        .is_ok_and(|seals| SealFlag::from_bits_retain(seals).contains(FIXED_SIZE))
}

/// Maps a usage block received from a process.
///
/// # Errors
/// `EINVAL` if it is not a memfd of the exact size whose size is sealed; `EPERM` if it cannot be written.
pub(crate) fn map_usage(file: &OwnedFd) -> nix::Result<UsageMap> {
    if !is_memfd(file) {
        return Err(Errno::EINVAL);
    }
    if usize::try_from(fstat(file)?.st_size) != Ok(USAGE_SIZE) {
        return Err(Errno::EINVAL);
    }
    UsageMap::new(file).map_err(errno)
}

fn errno(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Usage blocks as processes create them.
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "for tests")]
pub(crate) mod theirs {
    use super::*;

    /// Creates a usage block as a well-behaved hook does, with the given size and seals.
    pub(crate) fn usage_file(size: usize, seals: SealFlag) -> OwnedFd {
        let file = memfd_create("usage", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&file, i64::try_from(size).unwrap()).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        file
    }

    /// Creates a valid usage block.
    pub(crate) fn good_usage_file() -> OwnedFd {
        usage_file(USAGE_SIZE, FIXED_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::Relaxed;

    use super::theirs::*;
    use super::*;

    #[test]
    fn control_block_is_writable_only_by_its_mapping() {
        let (ours, file) = new_control().unwrap();
        let theirs = memmap2::MmapOptions::new()
            .map_raw_read_only(&file.as_fd())
            .unwrap();
        assert_eq!(theirs.len(), CONTROL_SIZE);
        ours.pid.store(42, Relaxed);
        assert_eq!(ours.pid.load(Relaxed), 42);
        assert!(
            memmap2::MmapOptions::new().map_raw(&file).is_err(),
            "a second writable mapping"
        );
        assert!(nix::unistd::write(&file, b"x").is_err(), "write(2)");
        assert!(ftruncate(&file, 0).is_err(), "shrinking");
    }

    #[test]
    fn control_block_cannot_be_reopened_unsealed_or_emptied() {
        use std::os::fd::AsRawFd;

        use nix::fcntl::{FallocateFlags, fallocate};

        let (ours, file) = new_control().unwrap();
        ours.pid.store(42, Relaxed);
        let anew = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .unwrap();
        let length = i64::try_from(CONTROL_SIZE).unwrap();
        for file in [file.as_fd(), anew.as_fd()] {
            assert!(memmap2::MmapOptions::new().map_raw(&file).is_err(), "mapped");
            assert!(nix::unistd::write(file, b"x").is_err(), "written");
            assert!(
                ftruncate(file, 0).is_err() && ftruncate(file, 2 * length).is_err(),
                "resized"
            );
            let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            assert!(fallocate(file, hole, 0, length).is_err(), "emptied");
            // No seal can be removed, and none added, such as one against our own writes.
            for seal in [SealFlag::empty(), SealFlag::F_SEAL_WRITE] {
                assert_eq!(fcntl(file, FcntlArg::F_ADD_SEALS(seal)), Err(Errno::EPERM));
            }
        }
        assert_eq!(ours.pid.load(Relaxed), 42);
    }

    #[test]
    fn valid_usage_block_is_mapped() {
        let map = map_usage(&good_usage_file()).unwrap();
        assert!(!map.untrusted().raw().is_understood());
    }

    #[test]
    fn usage_block_of_another_size_is_refused() {
        for size in [
            0,
            USAGE_SIZE - 4096,
            USAGE_SIZE - 1,
            USAGE_SIZE + 1,
            2 * USAGE_SIZE,
        ] {
            assert_eq!(
                map_usage(&usage_file(size, FIXED_SIZE)).unwrap_err(),
                Errno::EINVAL,
                "{size}"
            );
        }
    }

    #[test]
    fn usage_block_of_variable_size_is_refused() {
        for missing in [
            SealFlag::F_SEAL_SHRINK,
            SealFlag::F_SEAL_GROW,
            SealFlag::F_SEAL_SEAL,
        ] {
            let file = usage_file(USAGE_SIZE, FIXED_SIZE - missing);
            assert_eq!(map_usage(&file).unwrap_err(), Errno::EINVAL, "{missing:?}");
        }
    }

    #[test]
    fn read_only_usage_block_is_refused() {
        for seal in [SealFlag::F_SEAL_WRITE, SealFlag::F_SEAL_FUTURE_WRITE] {
            let file = usage_file(USAGE_SIZE, FIXED_SIZE | seal);
            assert_eq!(map_usage(&file).unwrap_err(), Errno::EPERM, "{seal:?}");
        }
    }

    #[test]
    fn file_that_is_no_memfd_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(USAGE_SIZE as u64).unwrap();
        assert_eq!(map_usage(&file.into()).unwrap_err(), Errno::EINVAL);
        assert_eq!(
            map_usage(&File::open("/dev/zero").unwrap().into()).unwrap_err(),
            Errno::EINVAL
        );
        let (reader, _writer) = nix::unistd::pipe().unwrap();
        assert_eq!(map_usage(&reader).unwrap_err(), Errno::EINVAL);
    }
}
