//! Fuzz targets: each takes any bytes and panics if an invariant is violated. The programs around them are in
//! gcgroupfs/fuzz; a test runs each target over its seeds and over many corrupted copies.

#![allow(clippy::unwrap_used, reason = "a failure is what is looked for")]

use std::cell::OnceCell;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::message::{self, Answer, Hello, MAX_ANSWER, RegistrationReply, Request};

use crate::config;
use gcgroupfs_model::file::{self, ControlFile, Io, Node, PAGE};
use gcgroupfs_model::rules::Facts;
use gcgroupfs_model::tree::fixture::{OWNER, ROOT, World, words};
use gcgroupfs_model::tree::{Caller, Directory, GroupId, ProcessId, Saved, Settings};
use gcgroupfs_server::journal;
use gcgroupfs_server::socket::answer::{Credentials, Reading, answer};

/// Function under test, which takes any bytes.
pub type Target = fn(&[u8]);

/// Targets, by the name of their program and of their directory of seeds.
pub const TARGETS: &[(&str, Target)] = &[
    ("message", message),
    ("store", store),
    ("usage", usage),
    ("settings", settings),
    ("configuration", configuration),
];

const PID: u32 = 100;

thread_local! {
    static WORLD: OnceCell<(World, ProcessId)> = const { OnceCell::new() };
}

/// Calls `body` with a tree of two devices and one process in a nested group, which keeps the effects of
/// earlier inputs.
fn with_world(body: impl FnOnce(&World, ProcessId)) {
    WORLD.with(|world| {
        let (world, id) = world.get_or_init(|| {
            let world = World::new(2);
            world.group("team/a");
            let id = world.join(PID);
            world.store("team/a/gcgroup.procs", ROOT, "100").unwrap();
            world.store("team/memory.limit", ROOT, "1G").unwrap();
            (world, id)
        });
        body(world, *id);
        // Cannot fail: there is no other listener.
        drop(world.take_notices());
    });
}

/// Decodes a packet on the socket, as a registration or a request.
pub fn message(packet: &[u8]) {
    let _ = message::tag(packet);
    if let Ok(hello) = Hello::from_bytes(packet) {
        let requested = Settings::requested(&hello);
        let text = serde_json::to_vec(&requested).unwrap();
        assert_eq!(serde_json::from_slice::<Settings>(&text).unwrap(), requested);
    }
    let _ = RegistrationReply::from_bytes(packet);
    if let Ok(request) = Request::from_bytes(packet) {
        assert_eq!(Request::from_bytes(&request.to_bytes::<Vec<u8>>()), Ok(request));
    }
    if let Ok(answer) = Answer::from_bytes(packet) {
        assert_eq!(answer.to_bytes::<Vec<u8>>(), packet);
    }
    with_world(|world, _| {
        let asker = Credentials {
            uid: OWNER.uid,
            gid: OWNER.gid,
            pid: 1,
            groups: Vec::new(),
            is_contained: false,
        };
        let Some((reply, reading)) = answer(&world.tree, &asker, Reading::of_text(b"text".to_vec()), packet)
        else {
            return;
        };
        assert!(reply.len() <= MAX_ANSWER);
        let reply = Answer::from_bytes(&reply).unwrap();
        assert!(reply.status == 0 || reading.size() == 0);
        assert!(reply.part.len() <= reply.total as usize);
    });
}

/// Writes to a control file: the first byte selects the file and the caller, the rest is the data.
pub fn store(data: &[u8]) {
    let Some((which, text)) = data.split_first() else {
        return;
    };
    with_world(|world, _| {
        let directories = ["100", "100/0", "", "team", "team/a/0"].map(|path| {
            match file::resolve(&world.tree, path).unwrap() {
                Node::Dir(directory) => directory,
                Node::File(..) => unreachable!("a directory's path"),
            }
        });
        let writable: Vec<(Directory, &ControlFile)> = directories
            .into_iter()
            .flat_map(|directory| {
                file::files_in(&world.tree, directory)
                    .unwrap()
                    .map(move |file| (directory, file))
            })
            .filter(|(_, file)| {
                matches!(file.io, Io::ReadWrite(..) | Io::Setting(_)) && !file.contents.are_list()
            })
            .collect();
        let (directory, file) = writable[usize::from(*which >> 1) % writable.len()];
        let caller = if which & 1 == 0 { ROOT } else { OWNER };
        let shown = |file: &ControlFile| file.show(&world.tree, directory).unwrap();
        let before = shown(file);
        match file.store(&world.tree, directory, caller, text) {
            Err(_) => assert_eq!(shown(file), before, "{} was refused {text:?}", file.name),
            Ok(change) => {
                world.tree.finish(change);
                assert!(text.len() <= PAGE);
                let after = shown(file);
                assert!(after.len() <= PAGE && after.ends_with('\n'));
                if file.name != "memory.peak" {
                    let again = file.store(&world.tree, directory, ROOT, after.as_bytes());
                    world.tree.finish(again.unwrap());
                    assert_eq!(shown(file), after, "{} does not take what it shows", file.name);
                }
            }
        }
    });
}

/// Writes to the usage block as a hostile process: pairs of a word's index and its new value.
pub fn usage(data: &[u8]) {
    with_world(|world, id| {
        let blocks = world.tree.blocks(id).unwrap();
        let words = words(blocks.usage().raw());
        for pair in data.chunks_exact(10) {
            let (at, value) = pair.split_first_chunk::<2>().unwrap();
            let at = usize::from(u16::from_le_bytes(*at)) % words.len();
            words[at].store(u64::from_le_bytes(value.try_into().unwrap()), Relaxed);
        }
        world.tree.rung(id);
        show_all(world);
        words.iter().for_each(|word| word.store(0, Relaxed));
        blocks.usage().raw().publish();
    });
}

/// Returns the readable files of a directory.
fn readable(world: &World, directory: Directory) -> impl Iterator<Item = &'static ControlFile> {
    let files = file::files_in(&world.tree, directory).unwrap();
    files.filter(|file| !matches!(file.io, Io::Write(_)))
}

/// Reads all files.
fn show_all(world: &World) {
    for path in ["", "100", "100/0", "100/1", "team", "team/a", "team/a/0"] {
        let Node::Dir(directory) = file::resolve(&world.tree, path).unwrap() else {
            panic!("{path} is a directory")
        };
        for file in readable(world, directory) {
            let text = file.show(&world.tree, directory).unwrap();
            assert!(
                text.is_empty() || text.ends_with('\n'),
                "{path}/{}: {text:?}",
                file.name
            );
            let size = file::attributes(&world.tree, Node::File(directory, file))
                .unwrap()
                .size;
            assert!(text.len() as u64 <= size, "{path}/{}: {text:?}", file.name);
            file.nr_changes(&world.tree, directory).unwrap();
        }
    }
}

/// Reads all files in a directory and below.
fn show_tree(world: &World, directory: Directory) {
    for file in readable(world, directory) {
        file.show(&world.tree, directory).unwrap();
    }
    for (_, below) in world.tree.subdirectories(directory).unwrap() {
        show_tree(world, below);
    }
}

/// Reads a state file: what is understood must be written so that it is understood again.
pub fn settings(text: &[u8]) {
    journal::check::<Saved>(text);
    if let Ok(saved) = serde_json::from_slice::<Saved>(text) {
        let other = World::new(1);
        let parent = GroupId(GroupId::FIRST.0 + 1);
        let groups = [(parent, saved.clone()), (GroupId(parent.0 + 1), saved.clone())];
        other.tree.restore(saved.clone(), groups.into());
        show_tree(&other, Directory::ROOT);
        with_world(|world, _| {
            let id = world.join_with(PID + 1, gcgroupfs_model::tree::fixture::blocks(), saved);
            let caller = Caller { pid: 7, ..OWNER };
            let _ = world.store("101/memory.limit", caller, "1");
            for path in ["101", "101/0"] {
                let Node::Dir(directory) = file::resolve(&world.tree, path).unwrap() else {
                    return;
                };
                for file in readable(world, directory) {
                    file.show(&world.tree, directory).unwrap();
                }
            }
            world.tree.leave(id, 0);
        });
    }
}

/// Reads a configuration: either it is refused with the position of the error, or every process is assigned
/// to a group that can be created, or to none.
pub fn configuration(text: &[u8]) {
    let Ok(text) = str::from_utf8(text) else { return };
    let (nr_lines, path) = (text.matches('\n').count() + 1, Path::new("gcgroupfs.toml"));
    let config = match config::parse(text, path) {
        Ok(config) => config,
        Err(error) => {
            let error = error.to_string();
            let line = error
                .strip_prefix("gcgroupfs.toml:")
                .and_then(|rest| rest.split(':').next());
            assert!(
                (1..=nr_lines).contains(&line.unwrap().parse().unwrap()),
                "{error}"
            );
            return;
        }
    };
    let honest = Facts {
        uid: 1000,
        user: Some("alice".into()),
        comm: "python3".into(),
        exe: Some("/usr/bin/python3.11".into()),
        cgroups: vec!["/system.slice/job_12/step_0".into(), "/".into()],
        wish: Some("team/a".into()),
        ..Facts::default()
    };
    let hostile = Facts {
        comm: "../\0{uid}\n".into(),
        exe: Some("/tmp/..".into()),
        cgroups: vec!["/../../1".into(), "/job_*/**//".into()],
        ..honest.clone()
    };
    for facts in [honest, hostile, Facts::default()] {
        for judgement in config.rules.judgements(&facts) {
            assert!(text.is_char_boundary(judgement.offset));
        }
        let verdict = config.rules.verdict(&facts);
        let settings = serde_json::to_vec(&verdict.process.settings()).unwrap();
        assert_eq!(
            serde_json::from_slice::<Settings>(&settings).unwrap(),
            verdict.process.settings()
        );
        for name in verdict.group.iter().flat_map(|group| group.path.split('/')) {
            assert!(!matches!(name, "" | "." | "..") && name.len() <= 255, "{name:?}");
            assert!(!name.contains(char::is_control), "{name:?}");
            assert!(!name.bytes().all(|byte| byte.is_ascii_digit()), "{name:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Number of corrupted copies of each seed.
    const COPIES: u64 = 300;

    /// Random numbers by xorshift64*, the same in each run.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
        }

        fn below(&mut self, bound: usize) -> usize {
            usize::try_from(self.next() % bound.max(1) as u64).unwrap()
        }
    }

    fn spoil(seed: &[u8], numbers: &mut Numbers) -> Vec<u8> {
        let mut data = seed.to_vec();
        for _ in 0..=numbers.below(4) {
            let at = numbers.below(data.len() + 1);
            let byte = numbers.next().to_le_bytes()[0];
            match numbers.below(4) {
                0 => data.truncate(at),
                1 => data.insert(at, byte),
                2 => data.extend_from_within(at..),
                _ => data.iter_mut().skip(at).take(1).for_each(|old| *old = byte),
            }
        }
        data
    }

    #[test]
    fn every_target_accepts_its_seeds_and_corrupted_copies() {
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
        for (name, target) in TARGETS {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("fuzz/seeds")
                .join(name);
            let seeds = fs::read_dir(&directory).unwrap();
            let seeds: Vec<_> = seeds
                .map(|seed| fs::read(seed.unwrap().path()).unwrap())
                .collect();
            assert!(!seeds.is_empty(), "{name} has no seeds");
            for seed in &seeds {
                target(seed);
                (0..COPIES).for_each(|_| target(&spoil(seed, &mut numbers)));
            }
        }
    }

    #[test]
    fn every_target_has_a_program() {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        let programs = manifest.lines().filter_map(|line| line.strip_prefix("name = \""));
        let programs: Vec<_> = programs.filter(|name| *name != "gcgroupfs-fuzz\"").collect();
        let targets: Vec<_> = TARGETS.iter().map(|(name, _)| format!("{name}\"")).collect();
        assert_eq!(programs, targets);
    }
}
