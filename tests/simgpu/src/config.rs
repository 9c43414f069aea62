//! Configuration of the simulated machine. The first process that attaches reads it from the environment and
//! stores it in the state file; later processes read it from there.
//!
//! Besides the variables of [`Config`], each process reads some for itself:
//!
//! - `SIMGPU_DIR`: the machine's directory. Lines `INDEX NUMBER` of the file `xid` there are XID errors,
//!   which NVML reports as events.
//! - `SIMGPU_DRIVER`: the driver's version, `11.8`, `12.2`, `12.8` or `13.5` (the default), named by the CUDA
//!   version of its release. Newer functions are neither exported nor found by `cuGetProcAddress`.
//! - `SIMGPU_FAULTS`: calls that return an error and do nothing else: a list of `NAME=ERROR` (every call),
//!   `NAME=ERROR@N` (the N-th call in this process, from 1) and `NAME=ERROR@N+` (the N-th and all later
//!   calls). NAME is an exported name, such as `cuMemAlloc_v2` or `cuLaunchKernel_ptsz`, or a prefix followed
//!   by `*`; calls of all functions with the prefix are counted together. ERROR is a `CUresult` other than 0;
//!   or `stop`: the process is stopped (SIGSTOP), and the call is made when it continues; or `cancel`: the
//!   call is a cancellation point, as calls of the real driver may be. If several entries match, the first
//!   counts. Functions that are not simulated can have faults too.
//! - `SIMGPU_FAULTS_WHILE`: a file. The faults count and strike calls only while it exists.
//! - `SIMGPU_TRACE`: a file to which each call appends a line: pid, name, result.
//! - `SIMGPU_KEPT`: bytes of freed `cuMemCreate` device memory that are kept for reuse with their content, as
//!   on a real device. With 0 (the default) freed pages are returned to the system; later allocations fault
//!   in new pages and read zeros.
//! - `SIMGPU_PAGE`: size of a page of device memory, with a suffix as below (2 MiB). Blocks of linear
//!   memory and arrays of more than half a page take whole pages; smaller ones of one kind and context share
//!   pages, unless a page has less than 4096 bytes.
//! - `SIMGPU_HOST_MEMORY`: total bytes of simulated host memory, with a suffix as below. `meminfo` in the
//!   machine's directory shows what the processes leave of it, in the format of proc_meminfo(5). No
//!   allocation is refused because of it.
//! - `SIMGPU_CONTEXT_SIZES`, `SIMGPU_GREEN_SIZE`, `SIMGPU_CODE_SIZE`: device memory that contexts and modules
//!   take (`cost.rs` of the driver).
//! - `SIMGPU_CONCURRENT_KERNELS`: how many kernels of the process run at once, if they are on different
//!   streams and so do not fill the device: 1 (the default) to 128.
//! - `SIMGPU_SWITCH_US`: microseconds for which the device does nothing when it goes from this process to
//!   another one that waits (0).
//! - `SIMGPU_PRICES`: time and memory that calls take on real drivers (`price.rs` of the driver).
//! - `SIMGPU_QUIRKS`: behaviour of other drivers and machines (`quirks`).
//! - `SIMGPU_HOST_LOCATIONS`: what becomes of `cuMemCreate` at host locations: a list of `LOCATION=OUTCOME`.
//!   LOCATION is `numa:NODE`, `numa:*` or `host`; OUTCOME is a `CUresult` other than 0, `crash` (SIGSEGV) or
//!   `ok`. Nodes that are named exist. The first row for a location counts.
//! - `SIMGPU_FUTURE`: one additional name that `cuGetProcAddress` finds, as in a driver newer than all known
//!   lists.
//! - `SIMGPU_FUTURE_LOCATION`: one additional `CUmemLocation` type, a number; its memory is host memory.
//!
//! In null mode there are neither faults nor a trace.

use std::env;
use std::path::PathBuf;

use crate::mig::Mig;
use crate::work::Route;

pub use crate::mig::MAX_DEVICES;
pub use crate::size::parse_bytes;

/// Configuration of a machine, equal for all processes that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of devices, 1 to [`MAX_DEVICES`] (`SIMGPU_DEVICES`).
    pub devices: usize,
    /// Bytes of memory per device (`SIMGPU_MEMORY`, with an optional suffix K, M, G or T).
    pub memory: u64,
    /// Bytes of device memory per context (`SIMGPU_CONTEXT_MEMORY`).
    pub context_memory: u64,
    /// Longest time one process keeps the device while others wait, in nanoseconds (`SIMGPU_TIMESLICE_US`, in
    /// microseconds).
    pub timeslice_ns: u64,
    /// Bandwidth of copies between host and device, in bytes per second and direction
    /// (`SIMGPU_HOST_BANDWIDTH`).
    pub host_bandwidth: u64,
    /// Bandwidth of copies and sets within a device, in bytes per second (`SIMGPU_DEVICE_BANDWIDTH`).
    pub device_bandwidth: u64,
    /// MIG instances of each device (`SIMGPU_MIG`; see [`Mig`]). Devices and instances together are at most
    /// [`MAX_DEVICES`].
    pub mig: Mig,
    /// Whether driver calls check nothing and return at once (`SIMGPU_NULL=1`), for benchmarks.
    pub null: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            devices: 1,
            memory: 16 << 30,
            context_memory: 64 << 20,
            timeslice_ns: 2_000_000,
            host_bandwidth: 25 << 30,
            device_bandwidth: 1 << 40,
            mig: Mig::default(),
            null: false,
        }
    }
}

impl Config {
    /// Reads the `SIMGPU_*` variables. Unset and invalid variables have their defaults.
    pub fn from_env() -> Self {
        Self::from_vars(|name| env::var(name).ok())
    }

    fn from_vars(var: impl Fn(&str) -> Option<String>) -> Self {
        let standard = Config::default();
        let number = |name: &str| var(name).as_deref().and_then(parse_bytes);
        let devices = number("SIMGPU_DEVICES").and_then(|n| usize::try_from(n).ok());
        let devices = devices.map_or(standard.devices, |n| n.clamp(1, MAX_DEVICES));
        let memory = number("SIMGPU_MEMORY").unwrap_or(standard.memory);
        let wanted = var("SIMGPU_MIG").unwrap_or_default();
        let mig = Mig::parse(&wanted, devices, memory).unwrap_or_else(|| {
            eprintln!("simgpu: SIMGPU_MIG: the devices cannot be divided by {wanted}");
            standard.mig
        });
        Config {
            devices,
            memory,
            context_memory: number("SIMGPU_CONTEXT_MEMORY").unwrap_or(standard.context_memory),
            timeslice_ns: number("SIMGPU_TIMESLICE_US")
                .map_or(standard.timeslice_ns, |usec| usec.clamp(50, 10_000_000) * 1000),
            host_bandwidth: number("SIMGPU_HOST_BANDWIDTH")
                .map_or(standard.host_bandwidth, |bytes| bytes.max(1 << 20)),
            device_bandwidth: number("SIMGPU_DEVICE_BANDWIDTH")
                .map_or(standard.device_bandwidth, |bytes| bytes.max(1 << 20)),
            mig,
            null: var("SIMGPU_NULL").is_some_and(|v| v == "1"),
        }
    }
}

impl Config {
    /// Returns the nanoseconds that a copy of `bytes` takes on a route.
    pub fn copy_ns(&self, route: Route, bytes: u64) -> u64 {
        let bandwidth = match route {
            Route::ToDevice | Route::ToHost => self.host_bandwidth,
            Route::OnDevice => self.device_bandwidth,
        };
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(bandwidth.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// Returns the machine's directory: `SIMGPU_DIR`, or a directory per user under `/tmp`.
pub fn directory() -> PathBuf {
    match env::var_os("SIMGPU_DIR") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        // SAFETY: getuid has no arguments and cannot fail.
        _ => PathBuf::from(format!("/tmp/simgpu-{}", unsafe { libc::getuid() })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_replace_the_defaults_and_stay_in_range() {
        let vars = |name: &str| match name {
            "SIMGPU_DEVICES" => Some("99".to_owned()),
            "SIMGPU_MEMORY" => Some("1G".to_owned()),
            "SIMGPU_TIMESLICE_US" => Some("500".to_owned()),
            _ => None,
        };
        let config = Config::from_vars(vars);
        assert_eq!(config.devices, MAX_DEVICES);
        assert_eq!(config.memory, 1 << 30);
        assert_eq!(config.timeslice_ns, 500_000);
        assert!(!config.null);
    }
}
