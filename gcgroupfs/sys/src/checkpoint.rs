//! The driver's functions that move another process's memory to the host and back (`cuCheckpointProcess*`,
//! from driver 570), for the helper process that calls them.

use std::ffi::{c_int, c_uint};

use libloading::Library;
use serde::{Deserialize, Serialize};

/// A result of the driver other than `CUDA_SUCCESS` (`CUresult`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaError(pub u32);

impl CudaError {
    /// `CUDA_ERROR_INVALID_VALUE`: also for a process that does not use the driver.
    pub const INVALID_VALUE: Self = Self(1);
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// `CUDA_ERROR_INVALID_DEVICE`: the driver does not show a GPU to the helper.
    pub const NO_SUCH_GPU: Self = Self(101);
    /// `CUDA_ERROR_NOT_SUPPORTED`: also for a driver without these functions.
    pub const NOT_SUPPORTED: Self = Self(801);
    /// `CUDA_ERROR_SHARED_OBJECT_INIT_FAILED`: there is no driver.
    pub const NO_DRIVER: Self = Self(303);
}

/// State of a process in the driver (`CUprocessState`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessState {
    Running,
    /// Its driver calls wait.
    Locked,
    /// Its driver calls wait, and its memory is on the host.
    Checkpointed,
    /// The driver cannot continue the process.
    Failed,
    /// A program moves its memory out or back, from CUDA 13.4 on.
    Moving,
    /// A state of a later driver.
    Unknown(u32),
}

impl ProcessState {
    fn from_word(word: u32) -> Self {
        match word {
            0 => Self::Running,
            1 => Self::Locked,
            2 => Self::Checkpointed,
            3 => Self::Failed,
            4 | 5 => Self::Moving,
            word => Self::Unknown(word),
        }
    }
}

/// An operation on a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    GetState,
    /// Makes further driver calls wait, once all work has completed, or fails after so many milliseconds.
    Lock(u32),
    Checkpoint,
    Restore,
    /// Restores so that the GPUs with these UUIDs change places.
    RestoreOn(Uuid, Uuid),
    Unlock,
}

/// UUID of a GPU (`CUuuid`).
pub type Uuid = [u8; 16];

/// A request to the helper process, a packet of JSON: an operation on a process, which its start time (clock
/// ticks since boot) tells from later ones with its pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub pid: u32,
    pub start_time: u64,
    pub operation: Operation,
}

/// The helper process's answer to a request, a packet of JSON: the state that the operation leads to.
pub type Answer = Result<ProcessState>;

/// Length of the longest packet, bytes.
pub const LONGEST: usize = 512;

/// Arguments of a lock (`CUcheckpointLockArgs`).
#[repr(C)]
struct LockArgs {
    timeout_ms: c_uint,
    reserved: [u32; 15],
}

/// Two GPUs of a restore (`CUcheckpointGpuPair`): the second takes the place of the first.
#[repr(C)]
#[derive(Clone, Copy)]
struct GpuPair {
    old: Uuid,
    new: Uuid,
}

/// Arguments of a restore on other GPUs (`CUcheckpointRestoreArgs`).
#[repr(C)]
struct RestoreArgs {
    pairs: *const GpuPair,
    nr_pairs: c_uint,
    reserved: [u32; 13],
    /// The driver's structure may be longer than documented.
    more: [u64; 8],
}

/// Arguments of the other operations; the longest is that of a restore, 72 bytes. Zeroes are the defaults.
#[repr(C)]
struct NoArgs([u64; 16]);

type Result<T> = std::result::Result<T, CudaError>;

/// The loaded driver.
#[derive(Debug)]
pub struct Driver(Library);

impl Driver {
    /// Loads and initializes the driver. It must be initialized in the process that restores.
    ///
    /// # Errors
    /// Those of `cuInit`; [`CudaError::NO_DRIVER`].
    pub fn load() -> Result<Self> {
        // SAFETY: the driver's initializers may run in any process.
        let library = unsafe { Library::new("libcuda.so.1") };
        let driver = Self(library.map_err(|_| CudaError::NO_DRIVER)?);
        // SAFETY: the driver's signature of this function.
        let init = unsafe { driver.0.get::<unsafe extern "C" fn(c_uint) -> u32>(b"cuInit\0") };
        let init = init.map_err(|_| CudaError::NO_DRIVER)?;
        // SAFETY: 0 is the only value that is defined.
        check(unsafe { init(0) })?;
        Ok(driver)
    }

    /// Performs an operation on a process, and returns the state that it leads to.
    ///
    /// # Errors
    /// Those of the driver; [`CudaError::NOT_SUPPORTED`] if it has no such functions.
    pub fn perform(&self, pid: i32, operation: Operation) -> Result<ProcessState> {
        match operation {
            Operation::GetState => return self.state(pid),
            Operation::Lock(timeout_ms) => {
                let mut args = LockArgs {
                    timeout_ms,
                    reserved: [0; 15],
                };
                self.call(b"cuCheckpointProcessLock\0", pid, &mut args)?;
            }
            Operation::Checkpoint => {
                self.call(b"cuCheckpointProcessCheckpoint\0", pid, &mut NoArgs([0; 16]))?
            }
            Operation::Restore => self.call(b"cuCheckpointProcessRestore\0", pid, &mut NoArgs([0; 16]))?,
            Operation::RestoreOn(old, new) => {
                let pairs = self.pairs(old, new)?;
                let mut args = RestoreArgs {
                    pairs: pairs.as_ptr(),
                    nr_pairs: c_uint::try_from(pairs.len()).map_err(|_| CudaError::INVALID_VALUE)?,
                    reserved: [0; 13],
                    more: [0; 8],
                };
                self.call(b"cuCheckpointProcessRestore\0", pid, &mut args)?;
            }
            Operation::Unlock => self.call(b"cuCheckpointProcessUnlock\0", pid, &mut NoArgs([0; 16]))?,
        }
        Ok(match operation {
            Operation::Checkpoint => ProcessState::Checkpointed,
            Operation::Lock(_) | Operation::Restore | Operation::RestoreOn(..) => ProcessState::Locked,
            Operation::GetState | Operation::Unlock => ProcessState::Running,
        })
    }

    fn state(&self, pid: c_int) -> Result<ProcessState> {
        let mut word = 0;
        self.call(b"cuCheckpointProcessGetState\0", pid, &mut word)?;
        Ok(ProcessState::from_word(word))
    }

    /// Returns the pairs of all GPUs, as the driver demands: the two change places, and the others keep
    /// theirs.
    fn pairs(&self, one: Uuid, other: Uuid) -> Result<Vec<GpuPair>> {
        let mut count = 0;
        self.call_plain::<c_int>(b"cuDeviceGetCount\0", &mut count)?;
        let mut pairs = Vec::new();
        for ordinal in 0..count {
            let mut old = [0; 16];
            self.call_of_device(b"cuDeviceGetUuid_v2\0", &mut old, ordinal)?;
            let new = match old {
                old if old == one => other,
                old if old == other => one,
                old => old,
            };
            pairs.push(GpuPair { old, new });
        }
        let are_both = [one, other]
            .iter()
            .all(|uuid| pairs.iter().any(|pair| pair.old == *uuid));
        are_both.then_some(pairs).ok_or(CudaError::NO_SUCH_GPU)
    }

    fn call_plain<T>(&self, name: &[u8], argument: &mut T) -> Result<()> {
        // SAFETY: all functions whose names are passed here have this signature.
        let function = unsafe { self.0.get::<unsafe extern "C" fn(*mut T) -> u32>(name) };
        let function = function.map_err(|_| CudaError::NOT_SUPPORTED)?;
        // SAFETY: the argument is of the function's type, and writable.
        check(unsafe { function(argument) })
    }

    fn call_of_device(&self, name: &[u8], uuid: &mut Uuid, device: c_int) -> Result<()> {
        // SAFETY: all functions whose names are passed here have this signature.
        let function = unsafe { self.0.get::<unsafe extern "C" fn(*mut Uuid, c_int) -> u32>(name) };
        let function = function.map_err(|_| CudaError::NOT_SUPPORTED)?;
        // SAFETY: the UUID is as long as the function's type, and writable.
        check(unsafe { function(uuid, device) })
    }

    /// Calls a function of the driver with a pid and a pointer.
    fn call<T>(&self, name: &[u8], pid: c_int, argument: &mut T) -> Result<()> {
        // SAFETY: all functions whose names are passed here have this signature.
        let function = unsafe { self.0.get::<unsafe extern "C" fn(c_int, *mut T) -> u32>(name) };
        let function = function.map_err(|_| CudaError::NOT_SUPPORTED)?;
        // SAFETY: the argument is of the function's type or longer, and writable.
        check(unsafe { function(pid, argument) })
    }
}

fn check(result: u32) -> Result<()> {
    match result {
        0 => Ok(()),
        error => Err(CudaError(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_as_long_as_the_driver_expects() {
        assert_eq!(size_of::<LockArgs>(), 64);
        assert!(size_of::<NoArgs>() >= 72);
        assert_eq!(size_of::<GpuPair>(), 32);
        assert_eq!(std::mem::offset_of!(RestoreArgs, more), 64);
    }
}
