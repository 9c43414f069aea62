//! Programs in other users' names. Root alone can run them so.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artifacts::artifacts;
use crate::mount::Mount;

/// The built tree, where everybody can read it: where it is, or a copy in `place`, which everybody must be
/// able to read.
pub fn tree_for_all(place: &Path) -> PathBuf {
    let dist = artifacts().dist();
    if is_open_to_all(dist) {
        return dist.to_owned();
    }
    let copy = place.join("dist");
    for name in ["bin", "lib", "simgpu"] {
        let (from, to) = (dist.join(name), copy.join(name));
        if to.exists() {
            continue;
        }
        fs::create_dir_all(&to).expect("a directory of ours");
        for entry in fs::read_dir(&from).expect("the tree lists") {
            let entry = entry.expect("an entry");
            copy_program(&entry.path(), &to.join(entry.file_name()));
        }
    }
    copy
}

/// A program, where everybody can run it: where it is, or a copy in `place`.
pub fn program_for_all(program: &Path, place: &Path) -> PathBuf {
    if is_open_to_all(program) {
        return program.to_owned();
    }
    let copy = place.join(program.file_name().expect("a program has a name"));
    if !copy.exists() {
        copy_program(program, &copy);
    }
    copy
}

/// Copies a program, to be run at once: in a process of its own, since a child that another test starts just
/// then would have our descriptor open for writing, and what somebody writes is not executed (`ETXTBSY`).
///
/// # Panics
/// When it cannot be copied.
#[track_caller]
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().expect("cp runs");
    assert!(status.success(), "{} is copied", from.display());
}

fn is_open_to_all(path: &Path) -> bool {
    path.ancestors()
        .all(|path| fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o001 != 0))
}

impl Mount {
    /// As [`Self::command`], in another user's name and that of the group of the same number alone.
    pub fn command_of(&self, uid: u32, program: &Path) -> Command {
        let tree = tree_for_all(self.root());
        let mut command = self.bare_command(program_for_all(program, self.root()));
        command
            .uid(uid)
            .gid(uid)
            .env("LD_LIBRARY_PATH", tree.join("simgpu"))
            .env("LD_PRELOAD", tree.join("lib/libgcgroup.so"))
            .env("GCGROUP_SOCKET", self.socket());
        command
    }

    /// As [`Self::gcgroupfs`], in another user's name.
    pub fn gcgroupfs_of(&self, uid: u32, arguments: &[&str]) -> Command {
        let program = tree_for_all(self.root()).join("bin/gcgroupfs");
        let mut command = self.command_of(uid, &program);
        command.env_remove("LD_PRELOAD").args(arguments);
        command
    }

    /// Runs a script at the mount point in another user's name; gives whether it succeeded, and all that it
    /// said.
    #[track_caller]
    pub fn sh_of(&self, uid: u32, script: &str) -> (bool, String) {
        let output = Command::new("bash")
            .args(["-c", script])
            .uid(uid)
            .gid(uid)
            .current_dir(self.path())
            .env("LC_ALL", "C")
            .output()
            .expect("bash starts");
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    }
}
