//! The table of settings. From a row follow the control file's formats, the journal's records, what rules and
//! `gcgroupfs run` may set, root's bounds, and the manual.

use gcgroup_abi::environment::{GCGROUP_FREEZE, GCGROUP_MEMORY_LIMIT, GCGROUP_PRIORITY, GCGROUP_SWAP};
use gcgroup_abi::{DEFAULT_PRIORITY, VISIBLE_LIMIT};

use super::row::{AfterWrite, Check, Computed, HoldOption, Publish, RunOption, Setting};
use super::{Kind, Tighter, Value};
use crate::arbiter::MAX_PRIORITY;
use crate::quota::Quota;
use crate::tree::lease_action::LEASE_ACTIONS;

/// All settings of processes and groups.
pub const SETTINGS: &[&Setting] = &[
    MEMORY_LIMIT,
    MEMORY_HIGH,
    MEMORY_MIN,
    MEMORY_LOW,
    MEMORY_OOM_GROUP,
    MEMORY_SWAP_MAX,
    MEMORY_VISIBLE,
    COMPUTE_PRIORITY,
    COMPUTE_MAX,
    COMPUTE_FREEZE,
    LEASE,
    LEASE_ACTION,
    SUSPEND,
    IDLE,
    #[cfg(any(test, feature = "fixture"))]
    SAMPLE,
];

pub const MEMORY_LIMIT: &Setting = &Setting {
    name: "memory.limit",
    key: "memory_limit",
    bounds_jobs: true,
    refusal: "the memory limit can only be lowered",
    run_option: Some(RunOption {
        name: "memory-limit",
        variable: GCGROUP_MEMORY_LIMIT.name,
        bare: None,
        help: "Limit of device memory of the whole job and of each of its processes, as 8G or 1.5GiB, or max; on \
                one GPU as GPU-UUID=8G or 1=8G",
        asked: |hello| Some(Value::Number(hello.memory_limit)).filter(|limit| *limit != Value::MAX),
    }),
    after_write: Some(AfterWrite::CountOverLimit),
    hold_option: Some(HoldOption {
        name: "memory-limit",
        help: "Hold memory.limit at SIZE or less, as 8G or 50%",
    }),
    publish: Some(Publish::Limit),
    doc: "The most bytes that may be charged, of a group for all processes below together; or max. K, M, G, T, P \
          (also KB, KiB, with a fraction as 1.5G) are powers of 1024; 50% is half of the GPU's memory, for a process \
          or group as a whole of all GPUs' together. A value below memory.current is accepted: memory that can be swapped moves to the \
          host, the rest stays, and new allocations are refused.",
    ..Setting::PLAIN
};

pub const MEMORY_HIGH: &Setting = &Setting {
    name: "memory.high",
    key: "memory_high",
    bounds_jobs: true,
    refusal: "memory.high can only be lowered",
    after_write: Some(AfterWrite::ApplyHigh),
    hold_option: Some(HoldOption {
        name: "memory-high",
        help: "Hold memory.high at SIZE or less, as 8G or 50%",
    }),
    doc: "Bytes beyond which usage is throttled, of a group for all processes below together; or max. Nothing is \
          refused for it. Each allocation that leads beyond it, or further beyond it, counts as high in \
          memory.events and waits: for 1 s if usage exceeds it by an eighth or more, for less in proportion, at \
          least 10 ms, and no longer than until usage is within it again. The wait counts in memory.pressure; \
          where several are exceeded the longest holds. Meanwhile memory that can be swapped moves to the host, \
          in the order of memory.low, and returns when there is room below. Bytes in the formats of \
          memory.limit.",
    ..Setting::PLAIN
};

pub const MEMORY_MIN: &Setting = &Setting {
    name: "memory.min",
    key: "memory_min",
    default: Value::Number(0),
    refusal: "the protection can only be lowered",
    check: Some(Check::Protection),
    doc: "The bytes that are never moved out for others: for processes of higher priority, for a limit of a group \
          above, or by memory.reclaim of a group above; 0 unless set, as in cgroup v2. It is effective as far as \
          the groups above have it as well: what a group has is divided among its children and processes by what \
          they hold within their own values, and the rest by what else they hold. The own limit, memory.reclaim, \
          gcgroup.suspend and memory turns are not bound by it. Bytes in the formats of memory.limit. Other users \
          than root can write more than 0 only for a process or group in a group that they own; after root's value \
          they can only lower it. Once the process is in a group of another owner, or in none, the value counts up to \
          root's.",
    ..Setting::PLAIN
};

pub const MEMORY_LOW: &Setting = &Setting {
    name: "memory.low",
    key: "memory_low",
    default: Value::Number(0),
    refusal: "the protection can only be lowered",
    check: Some(Check::Protection),
    doc: "The bytes that are moved out for others only if nothing unprotected can be moved; otherwise as memory.min. \
          What is moved out first: memory beyond memory.high, then memory beyond memory.low, then memory beyond \
          memory.min; of each that of the lowest priority, and among equals that of the process with the most.",
    ..Setting::PLAIN
};

pub const MEMORY_OOM_GROUP: &Setting = &Setting {
    name: "memory.oom.group",
    key: "memory_oom_group",
    kind: Kind::Flag,
    default: Value::Flag(false),
    tighter: Tighter::Higher,
    refusal: "the group stays one that is killed as a unit",
    doc: "What happens when an allocation of a process in the group or below is refused because of the \
          memory.limit of the group or of one above. 0: the program is told, by CUDA_ERROR_OUT_OF_MEMORY. 1: in \
          addition the processes of the group and below are killed, as by gcgroup.kill, and oom_group_kill in \
          memory.events counts it. Of several groups with 1 between the process and the limit the outermost is \
          killed. A refusal because of the process's own limit, or because the GPU is full, kills nothing; nor \
          does one that is avoided, by moving memory out or trimming pools. A program that tries sizes until one \
          is granted, or frees its cache and tries again, is killed at its first refusal.",
    ..Setting::PLAIN
};

pub const MEMORY_SWAP_MAX: &Setting = &Setting {
    name: "memory.swap.max",
    key: "memory_swap_max",
    bounds_jobs: true,
    process_default: Some(Value::Number(0)),
    refusal: "memory.swap.max can only be lowered",
    run_option: Some(RunOption {
        name: "swap",
        variable: GCGROUP_SWAP.name,
        bare: Some("max"),
        help: "Make large allocations movable to host memory, up to SIZE bytes, as 8G, or max",
        asked: |hello| {
            let asks = hello.can_swap != 0 && hello.memory_swap_max != 0;
            asks.then_some(Value::Number(hello.memory_swap_max))
        },
    }),
    shown: Some(Computed::SwapMax),
    check: Some(Check::SwapMax),
    after_write: Some(AfterWrite::BoundSwap),
    publish: Some(Publish::SwapMax),
    doc: "The most bytes that may be in host memory, or max. A process has 0 (never) unless it was started \
          otherwise: with --swap, with a value from a rule, or in a group for which root has set one other than 0. \
          Only such a process accepts more (EOPNOTSUPP); GCGROUP_SWAP=0 in its environment prevents it. A group has \
          max unless set: the bound for its processes together.",
    ..Setting::PLAIN
};

pub const MEMORY_VISIBLE: &Setting = &Setting {
    name: "memory.visible",
    key: "memory_visible",
    kind: Kind::Visible,
    default: Value::Number(VISIBLE_LIMIT),
    tighter: Tighter::Any,
    inherits: true,
    shown: Some(Computed::Visible),
    publish: Some(Publish::Visible),
    doc: "The device memory that the program is shown, by cuMemGetInfo, cuDeviceTotalMem and NVML; limits are \
          unaffected. limit: the smallest limit that applies, or the device's memory. swap: in addition as much \
          host memory as memory.swap.max and the host allow, of a process started with --swap; a program that \
          sizes itself by what is free then uses it. Or bytes, as 8G. What is shown as free is never more than \
          would be granted. A group's value holds for those of its processes that have none. default unsets it.",
    ..Setting::PLAIN
};

pub const COMPUTE_PRIORITY: &Setting = &Setting {
    name: "compute.priority",
    key: "priority",
    kind: Kind::Number {
        most: MAX_PRIORITY as u64,
        expected: "a number from 0 to 15",
    },
    default: Value::Number(DEFAULT_PRIORITY as u64),
    tighter: Tighter::Higher,
    refusal: "the priority number can only be raised",
    inherits: true,
    run_option: Some(RunOption {
        name: "priority",
        variable: GCGROUP_PRIORITY.name,
        bare: None,
        help: "Priority, 0 to 15; a lower number is a higher priority",
        asked: |hello| {
            let is_valid = hello.priority <= MAX_PRIORITY;
            is_valid.then_some(Value::Number(hello.priority.into()))
        },
    }),
    shown: Some(Computed::Priority),
    check: Some(Check::Priority),
    hold_option: Some(HoldOption {
        name: "priority",
        help: "Hold the priority number at N or more: the priority is this or lower",
    }),
    publish: Some(Publish::Priority),
    doc: "A number from 0 (highest priority) to 15; 8 unless set. default unsets it. Set on the process, it holds on all its devices; \
          a group's holds among its siblings, and for those of its processes that have none. compute.policy says what it means where \
          siblings want a GPU at once; see SCHEDULING. Users \
          other than root cannot set a number below the nearest one that root has set on the process, its group or \
          a group above, or below 8 where root has set none: EPERM, as for nice.",
    ..Setting::PLAIN
};

pub const COMPUTE_MAX: &Setting = &Setting {
    name: "compute.max",
    key: "compute_max",
    bounds_jobs: true,
    kind: Kind::Quota,
    default: Value::Quota(Quota::NONE),
    refusal: "the quota can only be lowered",
    doc: "The most GPU time in each period, as QUOTA PERIOD in microseconds, or max, in the format of cpu.max; or a \
          percentage of one GPU's time, as 50%. The \
          period is 100000 unless given, from 1000 to 1000000. The process's holds for the sum over its devices, a \
          group's for the sum over its processes. GPU time is measured; time used beyond the quota is subtracted \
          from the next periods.",
    ..Setting::PLAIN
};

pub const COMPUTE_FREEZE: &Setting = &Setting {
    name: "compute.freeze",
    key: "freeze",
    kind: Kind::Flag,
    default: Value::Flag(false),
    tighter: Tighter::Higher,
    refusal: "it stays frozen",
    for_rules: false,
    run_option: Some(RunOption {
        name: "freeze",
        variable: GCGROUP_FREEZE.name,
        bare: Some("1"),
        help: "Start frozen",
        asked: |hello| (hello.freeze == 1).then_some(Value::Flag(true)),
    }),
    after_write: Some(AfterWrite::NoteEvents),
    hold_option: Some(HoldOption {
        name: "freeze",
        help: "Hold the freeze",
    }),
    publish: Some(Publish::Freeze),
    doc: "The requested state: 1 holds back all further GPU work while submitted work completes, 0 thaws. A device \
          is frozen by its own file, its process's or that of any group above; gcgroup.events says when the freeze \
          is complete.",
    ..Setting::PLAIN
};

pub const LEASE: &Setting = &Setting {
    name: "gcgroup.lease",
    key: "lease",
    kind: Kind::Seconds,
    refusal: "the lease can only be shortened",
    shown: Some(Computed::LeaseLeft),
    after_write: Some(AfterWrite::ApplyLease),
    doc: "The seconds that are left of the group's lease, or max. When none are left the lease has expired: \
          gcgroup.lease.action holds for the group and what is below, also for processes that enter it, until another value is \
          written. Time counts from the write, also while the machine is suspended and while no daemon runs. lease_expired in \
          gcgroup.events tells when it has expired. After root's value other users can only shorten the lease.",
    ..Setting::PLAIN
};

pub const LEASE_ACTION: &Setting = &Setting {
    name: "gcgroup.lease.action",
    key: "lease_action",
    kind: Kind::LeaseAction,
    default: Value::Number(LEASE_ACTIONS[0].rank),
    tighter: Tighter::Higher,
    refusal: "the action can only become stricter",
    after_write: Some(AfterWrite::ApplyLease),
    doc: "What happens when the lease of the group has expired: @LEASE_ACTIONS@.",
    ..Setting::PLAIN
};

pub const SUSPEND: &Setting = &Setting {
    name: "gcgroup.suspend",
    key: "suspend",
    kind: Kind::Flag,
    default: Value::Flag(false),
    tighter: Tighter::Higher,
    refusal: "it stays suspended",
    hold_option: Some(HoldOption {
        name: "suspend",
        help: "Hold the suspension",
    }),
    check: Some(Check::Suspend),
    after_write: Some(AfterWrite::Suspend),
    doc: "The requested state: 1 freezes the process, or all processes in the group and below, and has the driver \
          move all their device memory with their contexts to the host, also of programs that were not started \
          with --swap. 0 moves it back once the GPUs and the groups have room, those of higher priority first. \
          gcgroup.events says when that is complete, and which step is under way or has failed; writing the value \
          again repeats a step that has failed. 0 gpu=N moves it to the GPU with index N in the file devices \
          instead, for this time: to one of the same model, from driver 580 on, if the process holds memory of one \
          GPU only. It keeps its device numbers. EOPNOTSUPP with a reason where that is impossible; then nothing \
          has changed. While suspended, memory.current is 0 and memory.swap.current includes what was moved; a \
          memory.swap.max that was set, of the process or of a group above, bounds it. \
          The program waits in its next driver call. EOPNOTSUPP with a reason if the driver is older than 570, or \
          cannot move what the process has: managed memory (before 580), memory shared with other processes by \
          CUDA IPC (before 610), contexts of MPS; such a process in a group fails alone. Then nothing has changed. \
          Contents, addresses, counts and settings stay.",
    ..Setting::PLAIN
};

pub const IDLE: &Setting = &Setting {
    name: "gcgroup.idle",
    key: "idle",
    kind: Kind::Idle,
    refusal: "idle processes must leave as soon or sooner",
    after_write: Some(AfterWrite::ApplyIdle),
    doc: "SECONDS ACTION, or max (never). After so many seconds in which the process submits nothing and none of \
          its work runs or waits, it leaves the GPU: @IDLE_ACTIONS@. Of its own value and those of the groups above, \
          each of which holds for every process below by itself, the one with the fewest seconds is in force. The \
          next submission (launch, copy, set, graph launch) brings it back: it waits until the process is thawed and \
          its memory is on the GPU again, as far as there is room; where several need more than there is, \
          memory turns decide. So does a call that exports memory or keeps it in place. Other calls of the driver \
          (allocations, frees, queries, creation of streams and events, waits for work that has completed) do not \
          need the GPU: they return as usual, and the process stays away. A submission of a stream capture is only recorded, \
          and does not bring it back either. While it is away, away in gcgroup.events is 1 and frozen as well. \
          A value written to compute.freeze or gcgroup.suspend holds in addition; a frozen process \
          does not leave. max brings back what has left. A new daemon brings all back and counts the time anew.",
    ..Setting::PLAIN
};

/// A setting that nothing obeys: the example of a new row.
#[cfg(any(test, feature = "fixture"))]
pub const SAMPLE: &Setting = &Setting {
    name: "compute.sample",
    key: "sample",
    kind: Kind::Number {
        most: 9,
        expected: "a number from 0 to 9",
    },
    default: Value::Number(5),
    refusal: "the sample can only be lowered",
    run_option: Some(RunOption {
        name: "sample",
        variable: "SAMPLE",
        bare: None,
        help: "A number for tests",
        asked: |_| None,
    }),
    publish: Some(Publish::Sample),
    doc: "A number for tests, from 0 to 9.",
    ..Setting::PLAIN
};
