//! `compute.*`: a process's use of the devices, and its limits.

use gcgroup_abi::{Pressure, Submission};

use crate::error::Result;
use crate::file::Contents::Page;
use crate::file::{ControlFile, Io, Io::Read, Io::ReadWrite, On};
use crate::text::{flat_keyed, parse_policy, value};
use crate::tree::{COMPUTE_FREEZE, COMPUTE_MAX, COMPUTE_PRIORITY, View, all_counters};

pub(super) const FILES: &[ControlFile] = &[
    ControlFile::of(COMPUTE_PRIORITY),
    ControlFile {
        name: "compute.policy",
        on: On::ROOT,
        contents: Page,
        io: ReadWrite(
            |view| Ok(value(view.policy().name)),
            |edit, text| {
                edit.set_policy(parse_policy(text)?);
                Ok(())
            },
        ),
        doc: "The scheduling policy: @POLICIES@. With each, waiting processes that have equal parts get 1 % of the GPU together, and all waiting ones at most 16 %. Only root writes it; it is kept until the machine restarts.",
    },
    ControlFile::of(COMPUTE_MAX),
    ControlFile::of(COMPUTE_FREEZE),
    #[cfg(any(test, feature = "fixture"))]
    ControlFile::of(crate::tree::SAMPLE),
    ControlFile {
        name: "compute.stat",
        on: On::EVERY,
        contents: Page,
        io: Read(stat),
        doc: "Flat keys: usage_usec (GPU time charged, at most 0.1 s old; with drivers before CUDA 12.5 it is measured only \
              under a quota, where priorities or groups differ, and for 10 s after each read), nr_launches, nr_graphs, nr_copies (submissions so far), share_percent (of a process: what it has of the GPU while all that have had work in the last 10 s want it; 0 if it has had none), memory_turn (of a process: 1, it has the memory turn of a GPU; 2, it \
              waits for one; 0, neither), @COUNTERS@.",
    },
    ControlFile {
        name: "compute.pressure",
        on: On::MEMBERS,
        contents: Page,
        io: Io::Pressure(Pressure::Compute),
        doc: "Time for which threads waited to submit: frozen, throttled, or without room in the window of queued work. \
              Two lines in the format of the kernel's PSI: some, while at least one thread waited, and full, while one \
              waited and no work of the process, or of any process here, was known to be on a GPU; each with the \
              percentages avg10, avg60 and avg300, and total in microseconds. See PRESSURE.",
    },
];

fn stat(view: &View<'_>) -> Result<String> {
    view.watch();
    let sums = view.sums();
    let numbers = [
        ("usage_usec", sums.usage_nsec / 1000),
        ("nr_launches", sums.submitted(Submission::Kernel)),
        ("nr_graphs", sums.submitted(Submission::Graph)),
        ("nr_copies", sums.submitted(Submission::Copy)),
    ];
    let counters = view.counters(all_counters(), "compute.stat");
    let memory_turn = view.memory_turn().map(|turn| ("memory_turn", turn));
    let share = view.share_percent().map(|percent| ("share_percent", percent));
    let of_process = share.into_iter().chain(memory_turn);
    Ok(flat_keyed(numbers.into_iter().chain(of_process).chain(counters)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use gcgroup_abi::{Gate, OTHER_DEVICE};

    use crate::tree::fixture::{ROOT, World};
    use crate::tree::{Notice, ProcessId};

    fn gates(world: &World, id: ProcessId) -> [bool; 3] {
        [0, 1, OTHER_DEVICE].map(|device| {
            Gate::from_word(world.control(id).devices[device].gate.load(Relaxed)) == Gate::Frozen
        })
    }

    #[test]
    fn unknown_symbols_are_counted_per_process() {
        let world = World::new(1);
        let id = world.join(100);
        world.usage(id).nr_unknown_symbols.store(3, Relaxed);
        assert!(
            world
                .show("100/compute.stat")
                .ends_with("\nnr_unknown_symbols 3\n")
        );
        for place in ["compute.stat", "100/0/compute.stat"] {
            assert!(!world.show(place).contains("nr_unknown_symbols"), "{place}");
        }
    }

    #[test]
    fn gate_is_closed_by_process_or_device_freeze() {
        let world = World::new(2);
        let id = world.join(100);
        world.store("100/compute.freeze", ROOT, "1").unwrap();
        assert_eq!(gates(&world, id), [true, true, true]);
        world.store("100/1/compute.freeze", ROOT, "1").unwrap();
        world.store("100/compute.freeze", ROOT, "0").unwrap();
        assert_eq!(gates(&world, id), [false, true, false]);
        world.store("100/1/compute.freeze", ROOT, "0").unwrap();
        assert_eq!(gates(&world, id), [false, false, false]);
    }

    #[test]
    fn generation_changes_only_with_a_gate() {
        let world = World::new(1);
        let id = world.join(100);
        let generation = || world.control(id).devices[0].freeze_generation.load(Relaxed);
        let start = generation();
        for (text, moved) in [("0", 0), ("1", 1), ("1", 1), ("0", 2), ("0", 2), ("1", 3)] {
            world.store("100/compute.freeze", ROOT, text).unwrap();
            assert_eq!(generation(), start + moved, "after {text}");
        }
        world.store("100/0/compute.freeze", ROOT, "1").unwrap();
        assert_eq!(generation(), start + 3);
    }

    #[test]
    fn frozen_is_shown_only_for_the_acknowledged_freeze() {
        let world = World::new(1);
        let id = world.join(100);
        let frozen = |path: &str| world.show(path).contains("frozen 1\n");
        let acknowledge = |device: usize| {
            let generation = world.control(id).devices[device].freeze_generation.load(Relaxed);
            world.usage(id).devices[device]
                .drained_generation
                .store(generation, Relaxed);
            world.tree.rung(id);
        };
        acknowledge(0);
        assert!(!frozen("100/0/gcgroup.events"), "an open gate is never frozen");
        world.store("100/compute.freeze", ROOT, "1").unwrap();
        assert!(!frozen("100/0/gcgroup.events"));
        world.take_notices();
        acknowledge(0);
        assert_eq!(world.take_notices(), [Notice::Rung(id), Notice::Events(id)]);
        assert!(frozen("100/0/gcgroup.events"));
        assert!(
            !frozen("100/gcgroup.events"),
            "the other devices have not acknowledged"
        );
        acknowledge(OTHER_DEVICE);
        assert!(frozen("100/gcgroup.events"));
        world.store("100/compute.freeze", ROOT, "0").unwrap();
        world.store("100/compute.freeze", ROOT, "1").unwrap();
        assert!(!frozen("100/gcgroup.events"), "that was another freeze");
    }

    #[test]
    fn change_is_journaled_and_rings_only_for_gates() {
        let world = World::new(1);
        let id = world.join(100);
        world.take_notices();
        world.store("100/compute.priority", ROOT, "3").unwrap();
        assert_eq!(world.take_notices(), [Notice::SettingsChanged(id)]);
        world.store("100/compute.priority", ROOT, "3").unwrap();
        assert_eq!(world.take_notices(), []);
        world.store("100/compute.freeze", ROOT, "1").unwrap();
        assert_eq!(
            world.take_notices(),
            [Notice::SettingsChanged(id), Notice::Ring(id)]
        );
        assert_eq!(world.control(id).devices[0].priority.load(Relaxed), 3);
    }
}
