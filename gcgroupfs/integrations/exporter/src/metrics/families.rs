//! The families of metrics: a table with a row for each.

use gcgroup_client::node::Files;

/// Kind of thing that a family has samples of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum On {
    Node,
    Gpu,
    Process,
    /// A process on one GPU that it uses.
    ProcessGpu,
    Group,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

/// One or more samples of a family for each node, GPU, process or group.
pub(super) struct Family {
    /// Without the prefix `gcgroup_`, and without a counter's `_total`.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    pub(super) on: On,
    pub(super) samples: &'static [Sample],
}

/// An additional label, if any, and the value; no value: no sample.
pub(super) type Sample = (Option<(&'static str, &'static str)>, fn(&Files) -> Option<f64>);

/// Converts a number; exact below 2^53, which is 8 PiB.
#[expect(clippy::cast_precision_loss, reason = "metrics are floating-point numbers")]
fn number(value: u64) -> f64 {
    value as f64
}

fn hundredths(value: u64) -> f64 {
    number(value) / 100.0
}

fn thousandths(value: u64) -> f64 {
    number(value) / 1000.0
}

/// Converts microseconds to seconds.
fn seconds(usec: u64) -> f64 {
    number(usec) / 1e6
}

/// Defines the families: what they are of, kind, name, help, and samples as an additional label or none, the
/// file or name of [`super::rows`], the key in it, and the unit that it is converted to.
macro_rules! families {
    ($($on:ident $kind:ident $name:literal $help:literal {
        $($(($label:literal $value:literal))? $file:literal $key:tt $convert:expr;)+
    })*) => {
        /// The families.
        pub(super) const FAMILIES: &[Family] = &[$(Family {
            name: $name,
            help: $help,
            kind: Kind::$kind,
            on: On::$on,
            samples: &[$((
                families!(@label $($label $value)?),
                |files| families!(@show files $file $key).map($convert),
            )),+],
        }),*];
    };
    (@label) => { None };
    (@label $label:literal $value:literal) => { Some(($label, $value)) };
    (@show $files:ident $file:literal ()) => { $files.number($file) };
    (@show $files:ident $file:literal ($stall:ident)) => { $files.pressure($file).map(|it| it.$stall.total_usec) };
    (@show $files:ident $file:literal $key:literal) => { $files.key($file, $key) };
}

families! {
    Gpu Gauge "gpu_memory_total_bytes" "Device memory" {
        "devices.stat" "memory_total" number;
    }
    Gpu Gauge "gpu_memory_used_bytes" "Device memory in use, by all processes and the driver" {
        "devices.stat" "memory_used" number;
    }
    Gpu Gauge "gpu_memory_charged_bytes" "Device memory charged to governed processes" {
        "devices.stat" "memory_charged" number;
    }
    Gpu Gauge "gpu_utilization_ratio" "Part of the last sampling period in which a kernel ran" {
        "devices.stat" "utilization" hundredths;
    }
    Gpu Gauge "gpu_temperature_celsius" "Temperature" {
        "devices.stat" "temperature" number;
    }
    Gpu Gauge "gpu_power_watts" "Power" {
        "devices.stat" "power_mw" thousandths;
    }
    Gpu Gauge "gpu_critical_xid" "Last XID error since the daemon started, other than of programs; 0: none" {
        "devices.stat" "critical_xid" number;
    }
    Gpu Gauge "gpu_processes" "Processes that use the GPU" {
        ("kind" "governed") "devices.stat" "governed" number;
        ("kind" "unmanaged") "devices.stat" "unmanaged" number;
    }
    ProcessGpu Gauge "process_gpu_memory_bytes" "Device memory charged to a process on a GPU" {
        "memory.current" () number;
    }
    ProcessGpu Gauge "process_gpu_memory_limit_bytes" "Smallest limit that applies to a process on a GPU, if any" {
        "(limit)" () number;
    }
    ProcessGpu Gauge "process_gpu_swapped_bytes" "Memory of a process that was moved from a GPU to the host" {
        "memory.swap.current" () number;
    }
    ProcessGpu Counter "process_gpu_time_seconds" "GPU time charged to a process on a GPU, while it is measured" {
        "compute.stat" "usage_usec" seconds;
    }
    ProcessGpu Counter "process_gpu_submissions" "Submissions of a process to a GPU" {
        ("kind" "kernel") "compute.stat" "nr_launches" number;
        ("kind" "graph") "compute.stat" "nr_graphs" number;
        ("kind" "copy") "compute.stat" "nr_copies" number;
    }
    Process Gauge "process_memory_bytes" "Device memory charged to a process" {
        "memory.current" () number;
    }
    Process Gauge "process_memory_limit_bytes" "Smallest limit that applies to a process over all GPUs, if any" {
        "(limit)" () number;
    }
    Process Gauge "process_memory_peak_bytes" "Highest memory of a process so far" {
        "memory.peak" () number;
    }
    Process Counter "process_cpu_seconds" "CPU time of all threads of a process" {
        "(cpu)" () seconds;
    }
    Process Gauge "process_resident_memory_bytes" "Host memory of a process (RSS)" {
        "(resident)" () number;
    }
    Process Gauge "process_start_time_seconds" "Start of a process, in seconds since 1970" {
        "(start)" () thousandths;
    }
    Process Gauge "process_priority" "Priority of a process, 0 (highest) to 15" {
        "compute.priority" () number;
    }
    Process Gauge "process_frozen" "1 while a process is frozen" {
        "(frozen)" () number;
    }
    Process Gauge "process_suspended" "1 while a process is suspended" {
        "(suspended)" () number;
    }
    Process Gauge "process_away" "1 while a process that was idle has left the GPU (gcgroup.idle)" {
        "gcgroup.events" "away" number;
    }
    Process Counter "process_idle" "Times that a process left the GPU because it was idle" {
        "memory.events" "idle" number;
    }
    Process Counter "process_refusals" "Allocations that a limit refused: of the process, or of a group above it" {
        ("limit" "process") "memory.events" "oom" number;
        ("limit" "group") "memory.events" "group_max" number;
    }
    Process Counter "process_high" "Times that an allocation of a process waited for its memory.high" {
        "memory.events" "high" number;
    }
    Process Counter "process_pressure_seconds" "Time for which a thread of the process waited" {
        ("resource" "compute") "compute.pressure" (some) seconds;
        ("resource" "memory") "memory.pressure" (some) seconds;
    }
    Process Counter "process_stalled_seconds" "Time for which a thread of the process waited and the process had no work on a GPU" {
        ("resource" "compute") "compute.pressure" (full) seconds;
        ("resource" "memory") "memory.pressure" (full) seconds;
    }
    Process Counter "process_held_seconds" "Time for which submissions of the process waited" {
        ("reason" "frozen") "compute.stat" "frozen_usec" seconds;
        ("reason" "throttled") "compute.stat" "throttled_usec" seconds;
    }
    Group Gauge "group_processes" "Governed processes in a group and below" {
        "(processes)" () number;
    }
    Group Gauge "group_memory_bytes" "Device memory charged to a group" {
        "memory.current" () number;
    }
    Group Gauge "group_memory_limit_bytes" "Smallest limit that applies to a group over all GPUs, if any" {
        "(limit)" () number;
    }
    Group Gauge "group_swapped_bytes" "Memory of a group that was moved to the host" {
        "memory.swap.current" () number;
    }
    Group Gauge "group_frozen" "1 while a group is frozen" {
        "(frozen)" () number;
    }
    Group Gauge "group_suspended" "1 while a group is suspended" {
        "(suspended)" () number;
    }
    Group Counter "group_gpu_time_seconds" "GPU time charged to a group, while it is measured" {
        "compute.stat" "usage_usec" seconds;
    }
    Group Counter "group_submissions" "Submissions of a group" {
        ("kind" "kernel") "compute.stat" "nr_launches" number;
        ("kind" "graph") "compute.stat" "nr_graphs" number;
        ("kind" "copy") "compute.stat" "nr_copies" number;
    }
    Group Counter "group_refusals" "Allocations in a group that a limit refused: of a process, of the group or of one in it" {
        "memory.events" "oom" number;
    }
    Group Counter "group_high" "Times that an allocation waited for memory.high of a group, or of a group or process in it" {
        "memory.events" "high" number;
    }
    Group Counter "group_oom_kills" "Times that a group, or one in it, was killed because of memory.oom.group" {
        "memory.events" "oom_group_kill" number;
    }
    Group Counter "group_pressure_seconds" "Time for which a thread in the group waited" {
        ("resource" "compute") "compute.pressure" (some) seconds;
        ("resource" "memory") "memory.pressure" (some) seconds;
    }
    Group Counter "group_stalled_seconds" "Time for which a thread in the group waited and the group had no work on a GPU" {
        ("resource" "compute") "compute.pressure" (full) seconds;
        ("resource" "memory") "memory.pressure" (full) seconds;
    }
    Node Counter "pressure_seconds" "Time for which a thread of a governed process waited" {
        ("resource" "compute") "compute.pressure" (some) seconds;
        ("resource" "memory") "memory.pressure" (some) seconds;
    }
    Node Counter "stalled_seconds" "Time for which a thread waited and no governed process had work on a GPU" {
        ("resource" "compute") "compute.pressure" (full) seconds;
        ("resource" "memory") "memory.pressure" (full) seconds;
    }
    Node Counter "refusals" "Allocations that a limit refused: of a process, or of a group" {
        "memory.events" "oom" number;
    }
    Node Gauge "processes" "Governed processes" {
        "(processes)" () number;
    }
    Node Gauge "unmanaged_uses" "Uses of a GPU without the library, or not as the process claims" {
        ("reason" "no_hook") "unmanaged" "no_hook" number;
        ("reason" "beyond_ledger") "unmanaged" "beyond_ledger" number;
        ("reason" "claims_more") "unmanaged" "claims_more" number;
        ("reason" "claims_use") "unmanaged" "claims_use" number;
    }
    Node Gauge "journal_degraded" "1 while settings cannot be stored" {
        "gcgroup.events" "journal_degraded" number;
    }
    Node Gauge "journal_damaged_lines" "Damaged lines of the stored settings when the daemon started" {
        "gcgroup.events" "journal_damaged" number;
    }
    Node Gauge "pod_containers_without_devices" "Containers started without the devices that they ask for, by --pods" {
        "(without devices)" () number;
    }
    Node Gauge "pods_without_rule" "1 if processes of pods were in no group, as the daemon has no rule for them, by --pods" {
        "(without rule)" () number;
    }
    Node Gauge "processes_dropped" "Processes left out because there are more than --max-processes" {
        "(processes dropped)" () number;
    }
    Node Gauge "groups_dropped" "Groups left out because there are more than --max-groups" {
        "(groups dropped)" () number;
    }
    Node Gauge "exporter_read_seconds" "Time that reading the state of the daemon took" {
        "(read)" () seconds;
    }
}
