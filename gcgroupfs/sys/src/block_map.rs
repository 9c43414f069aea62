//! Mappings of the control block and the usage block of a process.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};

use gcgroup_abi::{Control, map};
use memmap2::{MmapOptions, MmapRaw};

use gcgroupfs_model::tree::Untrusted;

/// A control block, mapped writable.
pub struct ControlMap(MmapRaw);

impl ControlMap {
    /// Maps a file of exactly [`map::CONTROL_SIZE`] bytes, which the caller has created.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(file: &impl AsFd) -> io::Result<Self> {
        let file = file.as_fd().as_raw_fd();
        Ok(Self(MmapOptions::new().len(map::CONTROL_SIZE).map_raw(file)?))
    }
}

impl Deref for ControlMap {
    type Target = Control;

    fn deref(&self) -> &Control {
        // SAFETY: page-aligned, CONTROL_SIZE long, mapped for as long as `self` lives.
        unsafe { map::control(self.0.as_ptr()) }
    }
}

impl fmt::Debug for ControlMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlMap")
    }
}

/// A usage block, mapped writable, because the daemon writes one word for each device.
pub struct UsageMap(MmapRaw);

impl UsageMap {
    /// Maps a file of exactly [`map::USAGE_SIZE`] bytes that cannot shrink, which the caller has checked.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(file: &impl AsFd) -> io::Result<Self> {
        let file = file.as_fd().as_raw_fd();
        Ok(Self(MmapOptions::new().len(map::USAGE_SIZE).map_raw(file)?))
    }

    /// Returns the block, through the wrapper that bounds all values.
    pub fn untrusted(&self) -> Untrusted<'_> {
        // SAFETY: page-aligned, USAGE_SIZE long, mapped for as long as `self` lives.
        Untrusted::new(unsafe { map::usage(self.0.as_ptr()) })
    }
}

impl fmt::Debug for UsageMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UsageMap")
    }
}

/// A hook's view of a control block, for tests.
#[cfg(any(test, feature = "fixture"))]
#[derive(Debug)]
pub struct ControlReader(MmapRaw);

#[cfg(any(test, feature = "fixture"))]
impl ControlReader {
    pub fn new(file: &impl AsFd) -> io::Result<Self> {
        let file = file.as_fd().as_raw_fd();
        Ok(Self(
            MmapOptions::new()
                .len(map::CONTROL_SIZE)
                .map_raw_read_only(file)?,
        ))
    }
}

#[cfg(any(test, feature = "fixture"))]
impl Deref for ControlReader {
    type Target = Control;

    fn deref(&self) -> &Control {
        // SAFETY: page-aligned, CONTROL_SIZE long, mapped for as long as `self` lives; tests only load.
        unsafe { map::control(self.0.as_ptr()) }
    }
}

/// Publishes a usage block as its hook does.
#[cfg(any(test, feature = "fixture"))]
pub fn publish_usage(file: &impl AsFd) {
    let file = file.as_fd().as_raw_fd();
    #[allow(clippy::unwrap_used, reason = "for tests")]
    let mapping = MmapOptions::new().len(map::USAGE_SIZE).map_raw(file).unwrap();
    // SAFETY: page-aligned, USAGE_SIZE long, mapped until the end of this function.
    unsafe { map::usage(mapping.as_ptr()) }.publish();
}
