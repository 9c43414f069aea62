//! The table of control files.

mod compute;
mod gcgroup;
mod memory;

use crate::file::ControlFile;

/// All control files. Inode numbers are derived from a file's position; the order has no other effect.
pub const FILES: &[&[ControlFile]] = &[gcgroup::FILES, memory::FILES, compute::FILES];

/// Returns all files of [`FILES`].
pub fn all() -> impl Iterator<Item = &'static ControlFile> {
    FILES.iter().copied().flatten()
}

/// Returns a file's position in [`all`].
pub fn position(file: &ControlFile) -> usize {
    // Never fails: every row is in the table.
    all().position(|row| row.name == file.name).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::file::{self, Io, Node, PAGE};
    use crate::tree::fixture::{ROOT, World};

    /// Calls `test` for every file of every directory of a new process, of its group and of the root.
    fn each(world: &World, mut test: impl FnMut(&str, crate::tree::Directory, &'static ControlFile)) {
        world.group("team/a");
        let _ = world.store("team/a/gcgroup.procs", ROOT, "100");
        for path in ["", "100", "100/0", "team", "team/0", "team/a", "team/a/1"] {
            let Node::Dir(directory) = file::resolve(&world.tree, path).unwrap() else {
                panic!()
            };
            for file in file::files_in(&world.tree, directory).unwrap() {
                test(&format!("{path}/{}", file.name), directory, file);
            }
        }
    }

    #[test]
    fn names_are_unique_with_permitted_characters() {
        let mut seen = HashSet::new();
        for file in all() {
            assert!(seen.insert(file.name), "{} occurs twice", file.name);
            assert!(
                file.name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'.')),
                "{}",
                file.name
            );
            assert!(file.name.parse::<u64>().is_err());
        }
    }

    #[test]
    fn file_name_begins_with_its_controller() {
        for (table, controller) in FILES.iter().zip(["", "memory.", "compute."]) {
            assert!(table.iter().all(|file| file.name.starts_with(controller)));
        }
    }

    #[test]
    fn each_doc_is_a_sentence() {
        for ControlFile { name, doc, .. } in all() {
            assert!(
                doc.starts_with(|first: char| first.is_uppercase()) && doc.ends_with('.'),
                "{name}: {doc}"
            );
            assert!(
                !doc.contains("  ") && !doc.contains('\n') && !doc.contains('|'),
                "{name}: {doc}"
            );
        }
    }

    #[test]
    fn every_file_has_a_directory_and_a_slot() {
        assert!(all().all(|file| file.on.root || file.on.process || file.on.group));
        assert!(all().count() <= 254);
    }

    #[test]
    fn every_file_of_a_new_process_can_be_shown() {
        let world = World::new(2);
        world.join(100);
        each(&world, |path, directory, file| {
            if matches!(file.io, Io::Write(_)) {
                return;
            }
            let text = file
                .show(&world.tree, directory)
                .unwrap_or_else(|error| panic!("{path}: {error}"));
            assert!(text.is_empty() || text.ends_with('\n'), "{path}: {text:?}");
            assert!(file.contents.are_list() || text.len() <= PAGE, "{path}");
        });
    }

    #[test]
    fn shown_value_can_be_stored_back() {
        let world = World::new(2);
        world.join(100);
        each(&world, |path, directory, file| {
            let (Io::ReadWrite(..) | Io::Setting(_)) = file.io else {
                return;
            };
            if file.contents.are_list() {
                return;
            }
            let text = file.show(&world.tree, directory).unwrap();
            let stored = file.store(&world.tree, directory, ROOT, text.as_bytes());
            world
                .tree
                .finish(stored.unwrap_or_else(|e| panic!("{path}: {e}")));
            assert_eq!(file.show(&world.tree, directory).unwrap(), text, "{path}");
        });
    }

    #[test]
    fn hostile_usage_block_is_readable_within_a_page() {
        let world = World::new(2);
        let id = world.join(100);
        world.fill_usage(id, u64::MAX);
        each(&world, |path, directory, file| {
            if matches!(file.io, Io::Write(_)) {
                return;
            }
            let text = file
                .show(&world.tree, directory)
                .unwrap_or_else(|error| panic!("{path}: {error}"));
            assert!(file.contents.are_list() || text.len() <= PAGE, "{path}");
        });
    }
}
