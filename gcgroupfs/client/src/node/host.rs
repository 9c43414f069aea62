//! Facts that the kernel tells of a process: its command line, its start, its CPU time and its memory.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::LazyLock;
use std::time::SystemTime;

use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, geteuid, sysconf};
use serde::{Deserialize, Serialize};

/// Most bytes of a command line that are shown.
const LONGEST: usize = 4096;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Host {
    /// Arguments, separated by blanks; `None` for other users than the process's and root.
    pub command: Option<String>,
    /// Seconds since 1970.
    pub start: f64,
    /// CPU time of all threads, microseconds.
    pub cpu_usec: u64,
    /// Bytes of host memory (RSS).
    pub memory: u64,
}

impl Host {
    /// Reads what the kernel tells of a process of this user; `None` if it tells nothing, or if the pid is
    /// another process's here, as in another pid namespace than the daemon's.
    pub fn read(pid: u32, uid: u32) -> Option<Self> {
        let of = |name: &str| format!("/proc/{pid}/{name}");
        let is_own = fs::metadata(of("")).is_ok_and(|directory| directory.uid() == uid);
        let stat = is_own.then(|| fs::read_to_string(of("stat")).ok())??;
        // The name, in parentheses, may have any characters.
        let fields: Vec<u64> = stat
            .rsplit_once(')')?
            .1
            .split_ascii_whitespace()
            .map(|field| field.parse().unwrap_or_default())
            .collect();
        // Numbered from the third, as proc_pid_stat(5) does.
        let field = |number: usize| fields.get(number - 3).copied();
        let in_usec = |ticks: u64| ticks.saturating_mul(1_000_000) / number(SysconfVar::CLK_TCK, 100);
        #[expect(clippy::cast_precision_loss, reason = "a time since boot")]
        let start = *BOOT + in_usec(field(22)?) as f64 / 1e6;
        let may_see = geteuid().is_root() || geteuid().as_raw() == uid;
        let command = may_see.then(|| fs::read(of("cmdline")).ok()).flatten();
        Some(Self {
            command: command
                .map(|bytes| joined(&bytes))
                .filter(|text| !text.is_empty()),
            start,
            cpu_usec: in_usec(field(14)?.saturating_add(field(15)?)),
            memory: field(24)?.saturating_mul(number(SysconfVar::PAGE_SIZE, 4096)),
        })
    }
}

/// Time of the boot, seconds since 1970.
static BOOT: LazyLock<f64> = LazyLock::new(|| {
    let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map(std::time::Duration::from);
    since_1970.as_secs_f64() - since_boot.unwrap_or_default().as_secs_f64()
});

fn number(variable: SysconfVar, usual: u64) -> u64 {
    let number = sysconf(variable).ok().flatten();
    number
        .and_then(|number| u64::try_from(number).ok())
        .filter(|number| *number != 0)
        .unwrap_or(usual)
}

fn joined(bytes: &[u8]) -> String {
    let bytes = bytes.get(..LONGEST).unwrap_or(bytes);
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches('\0').replace('\0', " ")
}
