//! `memory.*`: a process's memory on the devices, and its limits.

use gcgroup_abi::{Kind, Pressure};

use crate::error::Result;
use crate::file::Contents::{Events, Page, Polled};
use crate::file::{ControlFile, Io, Io::Read, Io::ReadWrite, Io::Write, On};
use crate::text::{flat_keyed, value};
use crate::tree::{
    MEMORY_HIGH, MEMORY_LIMIT, MEMORY_LOW, MEMORY_MIN, MEMORY_OOM_GROUP, MEMORY_SWAP_MAX, MEMORY_VISIBLE,
    Sums, Swapped, View, all_counters,
};

pub(super) const FILES: &[ControlFile] = &[
    ControlFile::of(MEMORY_LIMIT),
    ControlFile {
        name: "memory.current",
        on: On::EVERY,
        contents: Page,
        io: Read(|view| Ok(value(view.memory_current()))),
        doc: "Bytes of device memory charged now.",
    },
    ControlFile {
        name: "memory.peak",
        on: On::GOVERNED,
        contents: Page,
        io: ReadWrite(|view| Ok(value(view.memory_peak()?)), |edit, _| edit.reset_peak()),
        doc: "The highest memory.current so far; any write resets it.",
    },
    ControlFile {
        name: "memory.swap.current",
        on: On::EVERY,
        contents: Page,
        io: Read(|view| Ok(value(view.sums().swap.current))),
        doc: "Bytes of device allocations that are in host memory now.",
    },
    ControlFile::of(MEMORY_HIGH),
    ControlFile::of(MEMORY_MIN),
    ControlFile::of(MEMORY_LOW),
    ControlFile {
        on: On::GROUPS,
        ..ControlFile::of(MEMORY_OOM_GROUP)
    },
    ControlFile::of(MEMORY_SWAP_MAX),
    ControlFile::of(MEMORY_VISIBLE),
    ControlFile {
        name: "memory.reclaim",
        on: On::GOVERNED,
        contents: Page,
        io: Write(|edit, text| edit.reclaim(edit.size(text)?)),
        doc: "Write bytes, or max, to swap out so much. The move begins at once; memory.events reports the result. The \
              memory stays on the host until a limit is changed or the process thaws. If the process was frozen \
              before, all of it returns before its work goes on.",
    },
    ControlFile {
        name: "memory.events",
        on: On::EVERY,
        contents: Events(|view| Ok(view.nr_count_changes())),
        io: Read(events),
        doc: "Flat keys: @COUNTERS@. poll(2) reports each change.",
    },
    ControlFile {
        name: "memory.notice",
        on: On::PROCESSES,
        contents: Polled(
            |view| Ok(view.nr_notice_changes()),
            |view, is_polled| view.poll_notices(is_polled),
        ),
        io: Read(|view| view.notice()),
        doc: "One line. evict target=BYTES deadline_usec=N: so many bytes of the process move to the host in N \
              microseconds, for processes of higher priority, in a memory turn or for a limit; what it frees until \
              then does not move. Otherwise available BYTES: what it may take before a limit is reached or the GPU is \
              full. poll(2) reports that a notice begins or ends. A process is given notice while a program polls the \
              file, or has read it within the last 2 seconds; memory.reclaim and gcgroup.suspend give none. In the \
              directory of the process the bytes of all its GPUs are added.",
    },
    ControlFile {
        name: "memory.notice.grace",
        on: On::ROOT,
        contents: Page,
        io: ReadWrite(
            |view| Ok(value(view.notice_grace())),
            |edit, text| edit.set_notice_grace(text),
        ),
        doc: "Milliseconds between a notice in memory.notice and the move, 0 to 3000; 0: no notice is given. Only root \
              writes it; it is kept until the machine restarts.",
    },
    ControlFile {
        name: "memory.stat",
        on: On::EVERY,
        contents: Page,
        io: Read(stat),
        doc: "Flat keys: bytes by kind of memory (ipc, host, multicast and unknown are shown and not charged; rounding \
              is charged beyond linear and array, since the device gives whole pages, and requested is what is charged \
              for allocations without it; context \
              is what the driver holds for contexts and modules, and shared memory that was freed while another \
              process or a descriptor may hold it; context_estimated is the part of it that is not \
              measured, because the driver does not tell what the process holds, or not yet), swapped (bytes in host memory), \
              swap_pool (host memory made for a coming move, or left by one within the last second, in addition to \
              swapped), pinned_unswappable (charged bytes that cannot move), @COUNTERS@.",
    },
    ControlFile {
        name: "memory.pressure",
        on: On::MEMBERS,
        contents: Page,
        io: Io::Pressure(Pressure::Memory),
        doc: "Time for which memory moved while the program was held, and for which allocations waited for room, for a \
              group's grant or because of memory.high; in the format of compute.pressure.",
    },
];

fn events(view: &View<'_>) -> Result<String> {
    Ok(flat_keyed(view.counters(all_counters(), "memory.events")))
}

fn stat(view: &View<'_>) -> Result<String> {
    let sums = view.sums();
    let kinds = Kind::ALL.iter().map(|(_, key, _)| *key).zip(sums.kinds);
    let numbers = kinds.chain([
        ("requested", sums.requested()),
        ("context", sums.contexts.saturating_add(sums.overhead)),
        (
            "context_estimated",
            sums.contexts_estimated.saturating_add(sums.overhead_estimated),
        ),
        ("swapped", sums.swap.current),
        ("swap_pool", sums.swap.pool),
        ("pinned_unswappable", sums.unswappable()),
    ]);
    let counters = Swapped::COUNTERS.iter().chain(Sums::COUNTERS);
    Ok(flat_keyed(numbers.chain(view.counters(counters, "memory.stat"))))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use gcgroup_abi::{Kind, OTHER_DEVICE};

    use crate::tree::fixture::{ROOT, TOTAL, World};

    #[test]
    fn memory_freed_by_another_thread_is_summed_correctly() {
        let world = World::new(2);
        let id = world.join(100);
        let usage = world.usage(id);
        usage.nr_threads.store(3, Relaxed);
        for (slot, device, bytes, alloc, free) in [
            (0, 1, 300_u64, 3, 0),
            (1, 1, 100_u64.wrapping_neg(), 0, 1),
            (2, 0, 7, 1, 0),
        ] {
            let slot = &usage.threads[slot];
            slot.counted_device.store(device, Relaxed);
            slot.kind(Kind::Vmm).unwrap().store(bytes, Relaxed);
            slot.nr_alloc.store(alloc, Relaxed);
            slot.nr_free.store(free, Relaxed);
        }
        usage.devices[1].kinds[Kind::Vmm as usize].store(50, Relaxed);
        let stat = world.show("100/1/memory.stat");
        for line in ["\nvmm 250\n", "\nnr_alloc 3\n", "\nnr_free 1\n"] {
            assert!(stat.contains(line), "{stat}");
        }
        assert!(world.show("100/memory.stat").contains("\nvmm 257\n"));
        // The free is visible, and the allocation is not yet.
        usage.threads[0].kind(Kind::Vmm).unwrap().store(0, Relaxed);
        assert!(world.show("100/1/memory.stat").contains("\nvmm 0\n"));
    }

    #[test]
    fn process_sums_its_devices_and_root_its_processes() {
        let world = World::new(2);
        let (one, other) = (world.join(100), world.join(101));
        for (id, device, bytes) in [
            (one, 0, 10),
            (one, 1, 200),
            (one, OTHER_DEVICE, 3000),
            (other, 1, 40000),
        ] {
            world.usage(id).devices[device]
                .memory_current
                .store(bytes, Relaxed);
            world.usage(id).devices[device].kinds[Kind::Linear as usize].store(bytes, Relaxed);
        }
        world.tree.set_overhead(one, 0, 500_000);
        for (path, expected) in [
            ("100/0/memory.current", "500010\n"),
            ("100/1/memory.current", "200\n"),
            ("100/memory.current", "503210\n"),
            ("101/memory.current", "40000\n"),
            ("memory.current", "543210\n"),
        ] {
            assert_eq!(world.show(path), expected, "{path}");
        }
        assert!(world.show("memory.stat").starts_with("linear 43210\n"));
        assert!(world.show("100/0/memory.stat").contains("\ncontext 500000\n"));
    }

    #[test]
    fn claim_beyond_the_device_size_is_clamped() {
        let world = World::new(1);
        let id = world.join(100);
        world.usage(id).devices[0].memory_current.store(u64::MAX, Relaxed);
        world.usage(id).devices[0].memory_peak.store(u64::MAX, Relaxed);
        assert_eq!(world.show("100/0/memory.current"), format!("{TOTAL}\n"));
        assert_eq!(world.show("100/0/memory.peak"), format!("{TOTAL}\n"));
    }

    #[test]
    fn reset_peak_starts_at_the_charge_and_grows_again() {
        for place in ["100", "100/0"] {
            let world = World::new(1);
            let id = world.join(100);
            let (usage, control) = (world.usage(id), world.control(id));
            usage.devices[0].memory_current.store(10, Relaxed);
            usage.devices[0].memory_peak.store(100, Relaxed);
            usage.memory_peak.store(100, Relaxed);
            let peak = format!("{place}/memory.peak");
            assert_eq!(world.show(&peak), "100\n");
            world.store(&peak, ROOT, "x").unwrap();
            // The process has not seen the reset yet.
            assert_eq!(world.show(&peak), "10\n");
            usage.devices[0].memory_current.store(30, Relaxed);
            assert_eq!(world.show(&peak), "30\n");
            usage.devices[0].memory_current.store(5, Relaxed);
            assert_eq!(world.show(&peak), "10\n");
            // Now it has seen the reset.
            usage.devices[0].memory_peak.store(30, Relaxed);
            usage.memory_peak.store(30, Relaxed);
            usage.devices[0]
                .peak_generation
                .store(control.devices[0].peak_generation.load(Relaxed), Relaxed);
            usage
                .peak_generation
                .store(control.peak_generation.load(Relaxed), Relaxed);
            assert_eq!(world.show(&peak), "30\n");
        }
    }

    #[test]
    fn limit_below_usage_is_accepted_and_counted() {
        let world = World::new(1);
        let id = world.join(100);
        world.usage(id).devices[0].memory_current.store(4096, Relaxed);
        world.store("100/0/memory.limit", ROOT, "4096").unwrap();
        assert!(world.show("100/0/memory.events").contains("over_limit 0\n"));
        world.store("100/0/memory.limit", ROOT, "4095").unwrap();
        assert_eq!(world.show("100/0/memory.limit"), "4095\n");
        assert_eq!(
            world.show("100/0/memory.events"),
            "high 0\nmax 0\noom 0\ngroup_max 0\noom_group_kill 0\nover_limit 1\nreclaim 0\nidle 0\nswap_in 0\nswap_out 0\nswap_fail 0\n"
        );
        assert_eq!(world.control(id).devices[0].memory_limit.load(Relaxed), 4095);
        world.store("100/memory.limit", ROOT, "1K").unwrap();
        assert_eq!(
            world.show("100/memory.events"),
            "high 0\nmax 0\noom 0\ngroup_max 0\noom_group_kill 0\nover_limit 2\nreclaim 0\nidle 0\nswap_in 0\nswap_out 0\nswap_fail 0\n"
        );
        assert_eq!(world.control(id).memory_limit.load(Relaxed), 1024);
        assert_eq!(world.show("100/0/memory.limit"), "4095\n");
    }
}
