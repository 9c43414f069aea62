//! Tests of reads and writes of control files.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::tree::fixture::{OTHER_USER, OWNER, ROOT, World, blocks, identity};
use crate::tree::{Notice, Settings};

pub(super) fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
    result.map(drop).unwrap_err().errno()
}

pub(super) fn file(world: &World, path: &str) -> (Directory, &'static ControlFile) {
    match resolve(&world.tree, path).unwrap() {
        Node::File(directory, file) => (directory, file),
        Node::Dir(_) => panic!("{path} is a directory"),
    }
}

fn store(world: &World, path: &str, caller: Caller, data: &[u8]) -> Result<()> {
    let (directory, file) = file(world, path);
    file.store(&world.tree, directory, caller, data)
        .map(|change| world.tree.finish(change))
}

fn show(world: &World, path: &str) -> String {
    let (directory, file) = file(world, path);
    file.show(&world.tree, directory).unwrap()
}

#[test]
fn counts_of_changes_go_on_when_a_program_registers_again() {
    let world = World::new(1);
    let program = identity(100);
    let join = || world.tree.join(program.clone(), blocks(), Settings::default());
    join();
    let counts = || {
        ["100/gcgroup.events", "100/0/memory.events"].map(|path| {
            let (directory, file) = file(&world, path);
            file.nr_changes(&world.tree, directory).unwrap()
        })
    };
    for _ in 0..3 {
        let before = counts();
        world.take_notices();
        let id = join();
        let now = counts();
        assert!(now[0] > before[0] && now[1] >= before[1], "{before:?} {now:?}");
        let woken = |notice: &Notice| matches!(notice, Notice::Events(of) if *of == id);
        assert!(world.take_notices().iter().any(woken));
    }
}

#[test]
fn a_read_counts_the_changes_that_it_shows() {
    let world = World::new(1);
    let id = world.join(100);
    world.group("a/b");
    world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
    world.store("a/compute.freeze", ROOT, "1").unwrap();
    let count = |path: &str| {
        let (directory, file) = file(&world, path);
        file.nr_changes(&world.tree, directory).unwrap()
    };
    let read = |path: &str| {
        let (directory, file) = file(&world, path);
        file.show_and_count(&world.tree, directory).unwrap()
    };
    // As the hook does before it rings.
    let drain = |generation: u32| {
        for (usage, control) in world.usage(id).devices.iter().zip(&world.control(id).devices) {
            let frozen = control.freeze_generation.load(Relaxed).wrapping_sub(generation);
            usage.drained_generation.store(frozen, Relaxed);
        }
    };
    for directory in ["100", "100/0", "a/b", "a/0"] {
        let events = format!("{directory}/gcgroup.events");
        drain(1);
        world.tree.rung(id);
        let before = count(&events);
        drain(0);
        let (text, counted) = read(&events);
        assert!(text.contains("frozen 1\n"), "{directory}: {text}");
        assert_eq!(counted, before + 1, "{directory}");
        world.tree.rung(id);
        assert_eq!(
            count(&events),
            counted,
            "{directory}: a change that was read before"
        );
    }
    for directory in ["100", "100/0", "a/b", "a/0"] {
        let events = format!("{directory}/memory.events");
        let before = count(&events);
        let max = &world.usage(id).devices[0].nr_max;
        let seen = max.fetch_add(1, Relaxed) + 1;
        let (text, counted) = read(&events);
        assert!(text.contains(&format!("max {seen}\n")), "{directory}: {text}");
        assert!(counted > before, "{directory}");
        world.tree.rung(id);
        assert_eq!(
            count(&events),
            counted,
            "{directory}: a change that was read before"
        );
    }
}

#[test]
fn store_ignores_surrounding_blanks() {
    let world = World::new(1);
    world.join(100);
    for data in ["4096", "4096\n", " 4096 \n", "\t4K\n"] {
        store(&world, "100/memory.limit", ROOT, b"max\n").unwrap();
        store(&world, "100/memory.limit", ROOT, data.as_bytes()).unwrap();
        assert_eq!(show(&world, "100/memory.limit"), "4096\n");
    }
    for data in [&b""[..], b"\n", b"  ", b"1\n2", b"1 2", b"\xff", b"1\0"] {
        assert_eq!(
            errno(store(&world, "100/memory.limit", ROOT, data)),
            libc::EINVAL,
            "{data:?}"
        );
    }
    assert_eq!(
        errno(store(&world, "100/memory.limit", ROOT, &[b'1'; PAGE + 1])),
        libc::E2BIG
    );
    assert_eq!(show(&world, "100/memory.limit"), "4096\n");
}

#[test]
fn store_newline_alone_resets_peaks_only() {
    let world = World::new(1);
    world.join(100);
    let places = [
        (Level::Root, ""),
        (Level::Process, "100/"),
        (Level::ProcessDevice, "100/0/"),
    ];
    for (level, directory) in places {
        let writable = |file: &&ControlFile| !matches!(file.io, Io::Read(_) | Io::Pressure(_));
        let here = crate::files::all().filter(|file| file.on.has(level));
        for file in here.filter(writable) {
            let path = format!("{directory}{}", file.name);
            let stored = store(&world, &path, ROOT, b"\n");
            match file.name {
                "memory.peak" => stored.unwrap(),
                _ => assert_eq!(errno(stored), libc::EINVAL, "{path}"),
            }
        }
    }
}

#[test]
fn store_is_permitted_to_owner_and_root_only() {
    let world = World::new(1);
    world.join(100);
    assert_eq!(
        errno(store(&world, "100/compute.freeze", OTHER_USER, b"1")),
        libc::EACCES
    );
    store(&world, "100/compute.freeze", OWNER, b"1").unwrap();
    store(&world, "100/compute.freeze", ROOT, b"1").unwrap();
    assert_eq!(
        errno(store(&world, "100/compute.freeze", OWNER, b"0")),
        libc::EPERM
    );
    assert_eq!(show(&world, "100/compute.freeze"), "1\n");
    assert_eq!(
        errno(store(&world, "100/memory.current", ROOT, b"1")),
        libc::EACCES
    );
}
