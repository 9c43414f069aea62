//! `gcgroup.*` and the root's lists: governed processes, their devices and their progress.

use std::fmt::Write;
use std::time::Duration;

use crate::error::Result;
use crate::file::Contents::{self, Events, List, Page};
use crate::file::{Asked, ControlFile, Io::Read, Io::ReadWrite, Io::Write as WriteOnly, On};
use crate::text::{flat_keyed, parse_pid, word};
use crate::tree::{IDLE, LEASE, LEASE_ACTION, SUSPEND, View};

/// A list that a scan of all devices fills.
const AUDIT: Asked = Asked {
    is_list: true,
    ask: |view| view.ask_audit(),
    is_answered: |view| view.has_audit(),
    // NVML is queried, which may take long the first time.
    patience: Duration::from_secs(3),
};

pub(super) const FILES: &[ControlFile] = &[
    ControlFile {
        name: "devices",
        on: On::ROOT,
        contents: List,
        io: Read(devices),
        doc: "The GPUs in NVML's order, one line each: INDEX UUID PCI-ADDRESS TOTAL-BYTES NAME. INDEX names the \
              device's directories. A GPU in MIG mode is replaced by its instances, each with an INDEX of its own; \
              instances made since the daemon started are listed last, once a process uses one or after SIGHUP.",
    },
    ControlFile {
        name: "devices.stat",
        on: On::ROOT,
        contents: Contents::Asked(AUDIT),
        io: Read(|view| Ok(view.device_stats().map(|stat| format!("{stat}\n")).collect())),
        doc: "One line for each GPU: the index, then KEY=VALUE pairs: memory_total and memory_used (bytes, as NVML shows \
              them), memory_charged (bytes charged to governed processes), utilization (percent of the last sampling \
              period), temperature (degrees Celsius), power_mw (milliwatts), governed and unmanaged (numbers of \
              processes that use the GPU), critical_xid (last XID error since the daemon started that is not of a \
              program's own making, 0: none; of 13, 31, 43, 45, 68 and 109 only the log tells). What NVML does not tell is unknown. Sampled when read, at most once a second.",
    },
    ControlFile {
        name: "exited",
        on: On::ROOT,
        contents: List,
        io: Read(|view| Ok(view.exited().map(|exited| format!("{exited}\n")).collect())),
        doc: "The last 64 processes that left, the latest first, one line each: the pid, then KEY=VALUE pairs (times \
              in seconds since 1970). memory.byte_seconds is memory.current over time (bytes times seconds), sampled once per \
              second; compute.usage_usec is that of compute.stat; how, if it is known, is exit:STATUS, signal:NUMBER \
              or exec. When the list is full, the user with the most lines loses the oldest. gcgroupfs report \
              shows more, and earlier ones.",
    },
    ControlFile {
        name: "unmanaged",
        on: On::ROOT,
        contents: Contents::Asked(AUDIT),
        io: Read(|view| Ok(view.unmanaged().iter().map(|one| format!("{one}\n")).collect())),
        doc: "Processes that use a GPU without the library, or not as they claim, as NVML shows them; one line for \
              each process and GPU: the pid, then KEY=VALUE pairs. reason is no_hook (bytes is all that it holds \
              there), beyond_ledger (it holds so many bytes more than its own account and its contexts explain), \
              claims_more (for 12 seconds its own account has had so many bytes more than NVML shows) or claims_use \
              (it claims to use the GPU, and neither NVML nor its submissions support that: no process waits for it, \
              and it is charged no GPU time). since is when it was first found (seconds since 1970). A read starts a \
              scan and waits for it.",
    },
    ControlFile {
        name: "gcgroup.procs",
        on: On::MEMBERS,
        contents: List,
        io: ReadWrite(
            |view| Ok(view.pids().iter().map(|pid| format!("{pid}\n")).collect()),
            |edit, text| edit.take_in(parse_pid(text)?),
        ),
        doc: "The pids of governed processes, one a line: at the root all, in a group those directly in it. Writing a \
              pid to a group's moves that process, with all that it holds, into the group; writing it to the root's \
              moves it out of its group. ESRCH if the process is not governed.",
    },
    ControlFile {
        name: "gcgroup.events",
        on: On::EVERY,
        contents: Events(|view| Ok(view.nr_standing_changes())),
        io: Read(events),
        doc: "Flat keys: populated (1 while the process lives, or there is one in the group or below), frozen (1 once all work has \
              drained after a freeze, here or above), suspended (1 once the memory of all is on the host by gcgroup.suspend, \
              here or above), of a process also hook (ok, or lost if it does not answer any more) and, while an \
              error of the driver keeps a freeze from being known to have drained, drain_error (the CUresult), of a process that is being suspended \
              or resumed suspend_step (check, drain, hold, lock, checkpoint, room, restore, unlock or identify: room waits \
              for free memory), or suspend_error (the step that has failed; gcgroupfs explain tells why), of a process with a value \
              in gcgroup.idle away (1 while it has left the GPU), of a group with \
              suspended processes nr_suspended, of a group \
              that is frozen, until all work has drained, also draining (the pid of a process that has not acknowledged the freeze, \
              the lowest of several), of a group with a lease also lease_expired (1 once gcgroup.lease has expired); poll(2) wakes on each change, but for draining. \
              At the root: journal_degraded (1 while there are settings that cannot be stored: they hold, and the next daemon would \
              not have them) and journal_damaged (damaged and missing lines of the stored settings that the daemon found when it \
              started), and unmanaged (processes that use a GPU without the library, \
              as last seen by a scan: at least every 10 seconds).",
    },
    ControlFile {
        name: "gcgroup.waits",
        on: On {
            process: true,
            ..On::NONE
        },
        contents: List,
        io: Read(|view| Ok(view.waits().iter().map(|wait| format!("{wait}\n")).collect())),
        doc: "The processes that this one waits or has waited for, one line each: the pid, then KEY=VALUE pairs. for is \
              turn (the other has the turn to submit work, or one of several that have it), memory (it has the memory \
              turn) or room (the device is full, and memory of the other is to move out); usec is the time of these waits, now is 1 while it waits for that one, and priority is the other's \
              in force, without it if it has ended. On each GPU the one of now is first, then come those that it has waited \
              for longest, 8 at most. A wait for a quota, a freeze or the process's own queued work is for no other process. The times begin at 0 when the daemon starts.",
    },
    ControlFile {
        name: "gcgroup.kill",
        on: On::WHOLE,
        contents: Contents::Page,
        io: WriteOnly(|edit, text| edit.kill(text)),
        doc: "Write 1 to send SIGKILL to the process, or to all governed processes in the group and below, as cgroup.kill \
              does: also to frozen and stopped ones and to those that execute another program. A process that started \
              before the write and registers in the group within 60 seconds after it is killed then. Children that do not \
              use CUDA are not governed and not killed. Of the processes in a group, a user other than root kills those to which \
              kill(2) lets it send signals: not those of other users, nor its own that have become root's by a set-user-ID \
              program. A lease and memory.oom.group kill for the group's owner. Write SIGTERM to send that signal, to processes that \
              are registered now. populated in gcgroup.events tells when all have ended.",
    },
    ControlFile {
        on: On::GROUPS,
        ..ControlFile::of(LEASE)
    },
    ControlFile {
        on: On::GROUPS,
        ..ControlFile::of(LEASE_ACTION)
    },
    ControlFile {
        on: On::WHOLE,
        io: ReadWrite(
            |view| Ok(SUSPEND.show(view.setting(SUSPEND)?)),
            |edit, text| edit.suspend(text),
        ),
        ..ControlFile::of(SUSPEND)
    },
    ControlFile {
        on: On::WHOLE,
        ..ControlFile::of(IDLE)
    },
    ControlFile {
        name: "gcgroup.devices",
        on: On::GROUPS,
        contents: Page,
        io: ReadWrite(|view| view.device_list(), |edit, text| edit.set_device_list(text)),
        doc: "The GPUs that processes of the group may use: all, none, or indices and UUIDs of the \
              file devices, as 0,2-3. EINVAL if one of them does not exist. Holds for processes that start later: they \
              see only the GPUs of gcgroup.devices.effective, in the driver and in NVML, and number them from 0; a \
              process in a group without GPUs gets CUDA_ERROR_NO_DEVICE. The program's own CUDA_VISIBLE_DEVICES chooses \
              among them; its numbers are these, as in a container, in the order of PCI addresses, whatever \
              CUDA_DEVICE_ORDER says. gcgroupfs run translates the variable, whose numbers are its own. A process that is moved keeps what it sees. A GPU that appears later is not in a \
              list, only in all. After root's list other users can only remove GPUs.",
    },
    ControlFile {
        name: "gcgroup.devices.effective",
        on: On::GROUPS,
        contents: Page,
        io: Read(|view| view.effective_devices()),
        doc: "The indices of the GPUs that exist and are in gcgroup.devices of the group and of all groups above, or none, as \
              cpuset.cpus.effective.",
    },
    ControlFile {
        name: "gcgroup.stat",
        on: On::EVERY,
        contents: Contents::Asked(Asked {
            is_list: false,
            ask: |view| view.ask_progress(),
            is_answered: |view| view.has_progress(),
            patience: Duration::from_millis(10),
        }),
        io: Read(stat),
        doc: "Kernels submitted, ended and pending, in the format of GVM. A read asks the process which kernels have \
              ended, and waits for that at most 10 ms.",
    },
];

fn devices(view: &View<'_>) -> Result<String> {
    Ok(view.devices().iter().fold(String::new(), |mut out, device| {
        let pci = if device.pci.is_empty() {
            "-".to_owned()
        } else {
            word(&device.pci).to_string()
        };
        let name = device.name.replace('\n', " ");
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{} {} {pci} {} {name}",
            device.index,
            word(&device.uuid_text),
            device.total
        );
        out
    }))
}

fn events(view: &View<'_>) -> Result<String> {
    let bit = |is: bool| if is { "1" } else { "0" };
    if let Some(storage) = view.storage() {
        return Ok(flat_keyed([
            ("journal_degraded", u64::from(storage.is_degraded)),
            ("journal_damaged", storage.nr_damaged),
            ("unmanaged", view.nr_unmanaged()),
        ]));
    }
    let hook = view
        .is_hook_ok()
        .map(|ok| ("hook", if ok { "ok" } else { "lost" }));
    let bits = [
        ("populated", bit(view.is_populated())),
        ("frozen", bit(view.is_frozen()?)),
        ("suspended", bit(view.is_suspended()?)),
    ];
    let away = view.is_away().map(|is_away| ("away", bit(is_away)));
    let expired = view.has_expired().map(|has| ("lease_expired", bit(has)));
    let draining = view.draining().map(|pid| format!("draining {pid}\n"));
    let error = view.drain_error().map(|error| format!("drain_error {error}\n"));
    let (step, failed) = view.suspend_steps();
    let steps = [("suspend_step", step), ("suspend_error", failed)];
    let steps = steps
        .into_iter()
        .filter_map(|(key, step)| Some((key, step?.name())));
    let suspended = view
        .nr_suspended()
        .map(|number| format!("nr_suspended {number}\n"));
    let last = [suspended, error.or(draining)].into_iter().flatten();
    let keys = bits
        .into_iter()
        .chain(hook)
        .chain(steps)
        .chain(away)
        .chain(expired);
    Ok(flat_keyed(keys) + &last.collect::<String>())
}

fn stat(view: &View<'_>) -> Result<String> {
    let sums = view.sums();
    view.ask_progress();
    let (submitted, pending) = (sums.kernels(), sums.nr_pending());
    let ended = submitted - pending;
    Ok(format!(
        "nr_submitted_kernels: {submitted}\nnr_ended_kernels: {ended}\nnr_pending_kernels: {pending}\n"
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use crate::tree::Notice;
    use crate::tree::fixture::{ROOT, World};

    #[test]
    fn gcgroup_stat_has_the_three_lines_of_gvm() {
        let world = World::new(1);
        let id = world.join(100);
        world.submit(id, 0, 7);
        world.usage(id).devices[0].nr_ended.store(3, Relaxed);
        let expected = "nr_submitted_kernels: 7\nnr_ended_kernels: 3\nnr_pending_kernels: 4\n";
        for path in ["gcgroup.stat", "100/gcgroup.stat", "100/0/gcgroup.stat"] {
            assert_eq!(world.show(path), expected, "{path}");
        }
    }

    #[test]
    fn reading_gcgroup_stat_asks_processes_with_pending_work() {
        let world = World::new(1);
        let (busy, idle) = (world.join(100), world.join(101));
        world.submit(busy, 0, 1);
        world.take_notices();
        world.show("gcgroup.stat");
        assert_eq!(world.take_notices(), [Notice::Ring(busy)]);
        assert_eq!(world.control(busy).progress_generation.load(Relaxed), 1);
        assert_eq!(world.control(idle).progress_generation.load(Relaxed), 0);
    }

    #[test]
    fn drain_error_is_shown_while_a_freeze_drains() {
        let world = World::new(2);
        let id = world.join(100);
        let usage = &world.usage(id).devices[1];
        usage.drain_error.store(46, Relaxed);
        let shown = |path: &str| world.show(path).contains("drain_error 46\n");
        assert!(!shown("100/gcgroup.events"), "nothing is frozen");
        usage.drain_error.store(0, Relaxed);
        world.store("100/compute.freeze", ROOT, "1").unwrap();
        world.take_notices();
        usage.drain_error.store(46, Relaxed);
        world.tree.rung(id);
        assert_eq!(world.take_notices(), [Notice::Rung(id), Notice::Events(id)]);
        assert!(shown("100/gcgroup.events") && shown("100/1/gcgroup.events"));
        assert!(!shown("100/0/gcgroup.events"));
        let generation = world.control(id).devices[1].freeze_generation.load(Relaxed);
        usage.drained_generation.store(generation, Relaxed);
        assert!(!shown("100/gcgroup.events"), "it has drained");
    }

    #[test]
    fn more_completed_than_submitted_leaves_none_pending() {
        let world = World::new(1);
        let id = world.join(100);
        world.usage(id).devices[0].nr_ended.store(3, Relaxed);
        assert!(
            world
                .show("100/gcgroup.stat")
                .ends_with("nr_pending_kernels: 0\n")
        );
    }

    #[test]
    fn lists_have_one_line_each() {
        let world = World::new(2);
        let id = world.join(100);
        world.join(99);
        assert_eq!(world.show("gcgroup.procs"), "99\n100\n");
        assert_eq!(world.show("100/gcgroup.procs"), "100\n");
        assert_eq!(world.show("devices").lines().count(), 2);
        assert!(
            world
                .show("devices")
                .starts_with("0 GPU-0 00000000:00:00.0 8589934592 Simulated GPU\n")
        );
        assert_eq!(world.show("exited"), "");
        world.tree.leave(id, 77);
        assert_eq!(
            world.show("exited"),
            "100 comm=a\\040program start=5 end=77 memory.peak=0 memory.byte_seconds=0 compute.usage_usec=0 \
             nr_alloc=0 nr_alloc_fail=0 oom=0 group_max=0 nr_launches=0 nr_graphs=0 nr_copies=0\n"
        );
    }
    #[test]
    fn root_events_show_settings_that_are_not_stored() {
        let world = World::new(1);
        let text = || world.show("gcgroup.events");
        assert_eq!(text(), "journal_degraded 0\njournal_damaged 0\nunmanaged 0\n");
        world.take_notices();
        world.tree.set_storage(true, 2);
        assert_eq!(text(), "journal_degraded 1\njournal_damaged 2\nunmanaged 0\n");
        assert_eq!(world.take_notices(), [Notice::RootEvents]);
        world.tree.set_storage(true, 2);
        assert_eq!(world.take_notices(), [], "nothing has changed");
    }
}
