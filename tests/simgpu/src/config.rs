//! What the simulated machine has: read from the environment by the first process that attaches,
//! kept in the state file, and read from there by all that come later.
//!
//! Besides the variables of [`Config`], each process obeys some of its own:
//!
//! - `SIMGPU_DIR`: the directory that the machine lives in.
//! - `SIMGPU_DRIVER`: the driver's version, `11.8`, `12.2`, `12.8` or `13.5` (the default), by the CUDA
//!   version that it came with. What is newer than it is neither exported nor found by `cuGetProcAddress`.
//! - `SIMGPU_FAULTS`: calls that answer an error and do nothing, a list of `NAME=ERROR` (every call),
//!   `NAME=ERROR@N` (the N-th call in this process, from 1) and `NAME=ERROR@N+` (that one and all later).
//!   NAME is an exported name, such as `cuMemAlloc_v2` or `cuLaunchKernel_ptsz`, or ends with `*` and stands
//!   for all that begin so, which are then counted together. ERROR is a `CUresult` other than 0; or `stop`:
//!   the process is stopped (SIGSTOP), and the call is done when it goes on; or `cancel`: the call is a
//!   cancellation point, as calls of the real driver may be. Of several that strike the first counts.
//!   Functions that are not simulated have faults too.
//! - `SIMGPU_TRACE`: a file to which a line is appended for each call: pid, name, answer.
//! - `SIMGPU_KEPT`: bytes of freed `cuMemCreate` memory of devices that stay where they are for the next to
//!   have, as a device's own do. By default (0) they go back to the system, and the next pays for pages and
//!   finds them zero.
//! - `SIMGPU_HOST_MEMORY`: bytes that the host is said to have, with a suffix as below; `meminfo` in the
//!   machine's directory tells what processes leave of it, in the form of proc_meminfo(5). Nothing is refused
//!   for it.
//! - `SIMGPU_FUTURE`: one more name that `cuGetProcAddress` finds, as of a driver newer than everybody's
//!   lists.
//! - `SIMGPU_FUTURE_LOCATION`: one more kind of `CUmemLocation`, a number; memory made there is the host's.
//!
//! Null mode has neither faults nor trace.

use std::env;
use std::path::PathBuf;

use crate::engine::Route;
use crate::mig::Mig;

/// Most devices a machine may have.
pub const MAX_DEVICES: usize = 16;

/// The simulated machine, alike for every process that shares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Devices in the machine, 1 to [`MAX_DEVICES`] (`SIMGPU_DEVICES`).
    pub devices: usize,
    /// Bytes of memory of each device (`SIMGPU_MEMORY`, with an optional suffix K, M, G or T).
    pub memory: u64,
    /// Bytes of device memory that a context costs (`SIMGPU_CONTEXT_MEMORY`).
    pub context_memory: u64,
    /// Longest time one process keeps the device while others wait, in nanoseconds
    /// (`SIMGPU_TIMESLICE_US`, in microseconds).
    pub timeslice_ns: u64,
    /// Bytes that a copy between host and device moves in a second, each way (`SIMGPU_HOST_BANDWIDTH`).
    pub host_bandwidth: u64,
    /// Bytes that a copy or a set within a device moves in a second (`SIMGPU_DEVICE_BANDWIDTH`).
    pub device_bandwidth: u64,
    /// Which devices are divided, and into what (`SIMGPU_MIG`; see [`Mig`]). With their instances they are at
    /// most [`MAX_DEVICES`].
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
    /// Reads the `SIMGPU_*` variables; what is not set, or cannot be read, has its default.
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
    /// Nanoseconds that a copy of so many bytes takes by a route.
    pub fn copy_ns(&self, route: Route, bytes: u64) -> u64 {
        let bandwidth = match route {
            Route::ToDevice | Route::ToHost => self.host_bandwidth,
            Route::OnDevice => self.device_bandwidth,
        };
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(bandwidth.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// The directory the machine lives in: `SIMGPU_DIR`, or one for each user under `/tmp`.
pub fn directory() -> PathBuf {
    match env::var_os("SIMGPU_DIR") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        // SAFETY: getuid has no arguments and cannot fail.
        _ => PathBuf::from(format!("/tmp/simgpu-{}", unsafe { libc::getuid() })),
    }
}

/// Parses a decimal size with an optional suffix K, M, G or T, powers of 1024, in either case.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "ki" | "kib" => 1 << 10,
        "m" | "mb" | "mi" | "mib" => 1 << 20,
        "g" | "gb" | "gi" | "gib" => 1 << 30,
        "t" | "tb" | "ti" | "tib" => 1 << 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_suffixes() {
        let cases = [
            ("0", Some(0)),
            ("12", Some(12)),
            ("3k", Some(3072)),
            ("16G", Some(16 << 30)),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_bytes(text), bytes, "{text}");
        }
        for text in ["", "G", "1X", "-1", "99999999999999T"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }

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
