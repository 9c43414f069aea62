//! Environment variables of governed programs: one row each. The hook and the command line take names from
//! here, and the manual page its entries.

use core::ffi::CStr;

/// Row of the table of environment variables.
#[derive(Debug)]
pub struct Variable {
    pub name: &'static str,
    /// The name as getenv(3) takes it.
    pub c_name: &'static CStr,
    /// Value as the manual page shows it: in capitals a placeholder.
    pub value: &'static str,
    /// Programs that read it: `hook`, `gcgroupfs`, or both.
    pub readers: &'static str,
    /// Entry in the manual page gcgroupfs(5).
    pub doc: &'static str,
}

macro_rules! variables {
    ($( $(#[doc = $doc:literal])* $name:ident = $value:literal, $readers:literal; )*) => {
        $(
            $(#[doc = $doc])*
            pub const $name: Variable = Variable {
                name: stringify!($name),
                c_name: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
                value: $value,
                readers: $readers,
                doc: concat!($($doc),*),
            };
        )*

        /// All variables, in the order of the manual page.
        pub const VARIABLES: &[Variable] = &[$($name),*];
    };
}

variables! {
    /// Path of the daemon's socket. Also used by the commands of gcgroupfs, where --socket is not given.
    GCGROUP_SOCKET = "PATH", "hook, gcgroupfs";
    /// Group in which the process asks to begin, as run --group: below the group that a rule of the daemon
    /// gives. run sets it to the path of the job's group.
    GCGROUP_GROUP = "NAME", "hook, gcgroupfs";
    /// As run --required. With 1, cuInit fails with CUDA_ERROR_SYSTEM_NOT_READY unless a daemon governs the
    /// process in its group. If the hook cannot be loaded, every CUDA function does.
    GCGROUP_REQUIRED = "1", "hook";
    /// First value of memory.limit. Holds without a daemon too.
    GCGROUP_MEMORY_LIMIT = "SIZE", "hook";
    /// First value of compute.priority.
    GCGROUP_PRIORITY = "N", "hook";
    /// With 1, the program starts frozen.
    GCGROUP_FREEZE = "1", "hook";
    /// Makes large allocations movable to host memory, as run --swap. First value of memory.swap.max; 1
    /// means max.
    GCGROUP_SWAP = "SIZE", "hook";
    /// Set by run to the values of GCGROUP_MEMORY_LIMIT and GCGROUP_SWAP, with a slash between: they are
    /// those of the job. While the group of the job has them, the process has none of its own.
    GCGROUP_JOB_LIMITS = "SIZE/SIZE", "hook, gcgroupfs";
    /// Order in which allocations move out: oldest (default) or largest.
    GCGROUP_RECLAIM = "ORDER", "hook";
    /// With wait, a thaw waits until the GPU has room for all that was moved out. Otherwise memory that
    /// does not fit is used over PCIe.
    GCGROUP_THAW = "wait", "hook";
    /// Bytes of host memory, or max, that are made before a move is asked for, while the host has plenty. A
    /// move then takes as long as its copies; making host memory takes several times as long.
    GCGROUP_SWAP_AHEAD = "SIZE", "hook";
    /// File to which the hook appends a line for each registration with the daemon and its loss, each refused
    /// allocation, each completed freeze and each move. It must be a regular file or absent, not a symbolic
    /// link; it is made with mode 0600.
    GCGROUP_LOG = "FILE", "hook";
    /// File to which the hook appends what it does, to find out why a program is not governed: the lines of
    /// GCGROUP_LOG, each hooked function with its addresses, the first call of each that reaches the driver,
    /// and each driver call of its own that fails. A file as for GCGROUP_LOG.
    GCGROUP_TRACE = "FILE", "hook";
    /// File that is read in place of /proc/meminfo, for tests.
    GCGROUP_MEMINFO = "FILE", "hook, gcgroupfs";
    /// Directory that is read in place of /sys/devices/system/node, for tests.
    GCGROUP_NODES = "DIRECTORY", "hook";
}
