//! Integration tests: one binary, a real mount, real processes. Each file tests one subject.

#[cfg(test)]
mod allocator;
#[cfg(test)]
mod answers;
#[cfg(test)]
mod arbiter;
#[cfg(test)]
mod awaited;
#[cfg(test)]
mod built;
#[cfg(test)]
mod calls;
#[cfg(test)]
mod cap;
#[cfg(test)]
mod cgroup;
#[cfg(test)]
mod churn;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod clients;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod completion;
#[cfg(test)]
mod configured_groups;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod containers;
#[cfg(test)]
mod contended;
#[cfg(test)]
mod context_charge;
#[cfg(test)]
mod coverage;
#[cfg(test)]
mod deadlock;
#[cfg(test)]
mod delegation;
#[cfg(test)]
mod descriptors;
#[cfg(test)]
mod device_stat;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod docs;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod driver;
#[cfg(test)]
mod end_to_end;
#[cfg(test)]
mod erratic;
#[cfg(test)]
mod events;
#[cfg(test)]
mod everywhere;
#[cfg(test)]
mod explain;
#[cfg(test)]
mod exporter;
#[cfg(test)]
mod failed;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod forked;
#[cfg(test)]
mod freeze;
#[cfg(test)]
mod freeze_faults;
#[cfg(test)]
mod gated;
#[cfg(test)]
mod gpu_check;
#[cfg(test)]
mod gpu_check_ended;
#[cfg(test)]
mod gpu_seconds;
#[cfg(test)]
mod green;
#[cfg(test)]
mod group_devices;
#[cfg(test)]
mod group_kill;
#[cfg(test)]
mod groups;
#[cfg(test)]
mod groups_limit;
#[cfg(test)]
mod groups_swap;
#[cfg(test)]
mod gvm;
#[cfg(test)]
mod happened;
#[cfg(test)]
mod history;
#[cfg(test)]
mod holds;
#[cfg(test)]
mod holes;
#[cfg(test)]
#[path = "../../hook/names.rs"]
mod hooked;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod hostile_descriptors;
#[cfg(test)]
mod hostile_memory;
#[cfg(test)]
mod idle;
#[cfg(test)]
mod imported;
#[cfg(test)]
mod imports;
#[cfg(test)]
mod install;
#[cfg(test)]
mod interception;
#[cfg(test)]
mod job_limits;
#[cfg(test)]
mod job_weights;
#[cfg(test)]
mod jobs;
#[cfg(test)]
mod kill;
#[cfg(test)]
mod kill_sums;
#[cfg(test)]
mod kill_whole;
#[cfg(test)]
mod leases;
#[cfg(test)]
mod liars;
#[cfg(test)]
mod load;
#[cfg(test)]
mod logging;
#[cfg(test)]
mod lookups;
#[cfg(test)]
mod ls;
#[cfg(test)]
mod memory_bounds;
#[cfg(test)]
mod memory_differential;
#[cfg(test)]
mod memory_exported;
#[cfg(test)]
mod memory_gone;
#[cfg(test)]
mod memory_graph;
#[cfg(test)]
mod memory_high;
#[cfg(test)]
mod memory_model;
#[cfg(test)]
mod memory_old;
#[cfg(test)]
mod memory_oom_group;
#[cfg(test)]
mod memory_overhead;
#[cfg(test)]
mod memory_pool;
#[cfg(test)]
mod memory_sparse;
#[cfg(test)]
mod memory_vmm;
#[cfg(test)]
mod mig;
#[cfg(test)]
mod names;
#[cfg(test)]
mod notices;
#[cfg(test)]
mod nvml;
#[cfg(test)]
mod odd_times;
#[cfg(test)]
mod older_drivers;
#[cfg(test)]
mod outside;
#[cfg(test)]
mod own_daemon;
#[cfg(test)]
mod peers;
#[cfg(test)]
mod peers_calls;
#[cfg(test)]
mod peers_ways;
#[cfg(test)]
mod pressure;
#[cfg(test)]
mod privileged;
#[cfg(test)]
mod progress;
#[cfg(test)]
mod prometheus;
#[cfg(test)]
mod promised;
#[cfg(test)]
mod property;
#[cfg(test)]
mod protection;
#[cfg(test)]
mod quotas;
#[cfg(test)]
mod rapid_exec;
#[cfg(test)]
mod record;
#[cfg(test)]
mod refusal_counts;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod refused_calls;
#[cfg(test)]
mod refused_launches;
#[cfg(test)]
mod renumbering;
#[cfg(test)]
mod replaced;
#[cfg(test)]
mod required;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod rules_groups;
#[cfg(test)]
mod runtime_library;
#[cfg(test)]
mod scarce;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod service;
#[cfg(test)]
mod several_gpus;
#[cfg(test)]
mod shares;
#[cfg(test)]
mod shell;
#[cfg(test)]
mod short_programs;
#[cfg(test)]
mod simgpu;
#[cfg(test)]
mod simgpu_accounting;
#[cfg(test)]
mod simgpu_batches;
#[cfg(test)]
mod simgpu_checkpoint;
#[cfg(test)]
mod simgpu_churn;
#[cfg(test)]
mod simgpu_faults;
#[cfg(test)]
mod simgpu_graphs;
#[cfg(test)]
mod simgpu_green;
#[cfg(test)]
mod simgpu_ipc;
#[cfg(test)]
mod simgpu_multicast;
#[cfg(test)]
mod simgpu_nvml;
#[cfg(test)]
mod simgpu_old;
#[cfg(test)]
mod simgpu_pools;
#[cfg(test)]
mod simgpu_prices;
#[cfg(test)]
mod simgpu_sparse;
#[cfg(test)]
mod simgpu_symbols;
#[cfg(test)]
mod simgpu_truth;
#[cfg(test)]
mod simgpu_versions;
#[cfg(test)]
mod simgpu_vmm;
#[cfg(test)]
mod small_stacks;
#[cfg(test)]
mod soak;
#[cfg(test)]
mod statistics;
#[cfg(test)]
mod storm;
#[cfg(test)]
mod supervise;
#[cfg(test)]
mod supervise_limits;
#[cfg(test)]
mod supervise_starved;
#[cfg(test)]
mod supervise_stuck;
#[cfg(test)]
mod suspend;
#[cfg(test)]
mod suspend_gpu;
#[cfg(test)]
mod suspend_helper;
#[cfg(test)]
mod suspend_kills;
#[cfg(test)]
mod suspend_refused;
#[cfg(test)]
mod swap;
#[cfg(test)]
#[cfg(test)]
mod swap_aside;
#[cfg(test)]
mod swap_calls;
#[cfg(test)]
mod swap_enabled;
#[cfg(test)]
mod swap_faults;
#[cfg(test)]
mod swap_host;
#[cfg(test)]
mod swap_large;
#[cfg(test)]
mod swap_load;
#[cfg(test)]
mod swap_location;
#[cfg(test)]
mod swap_newcomers;
#[cfg(test)]
mod swap_numbers;
#[cfg(test)]
mod swap_order;
#[cfg(test)]
mod swap_pinned;
#[cfg(test)]
mod swap_pressure;
#[cfg(test)]
mod swap_shared;
#[cfg(test)]
mod tenants;
#[cfg(test)]
mod top;
#[cfg(test)]
mod totals;
#[cfg(test)]
mod trouble;
#[cfg(test)]
mod turns;
#[cfg(test)]
mod unmanaged;
#[cfg(test)]
mod unread_log;
#[cfg(test)]
mod variables;
#[cfg(test)]
mod versions;
#[cfg(test)]
mod visible;
#[cfg(test)]
mod wait;
#[cfg(test)]
mod watchdog;
#[cfg(test)]
mod weights;
#[cfg(test)]
mod windows;
