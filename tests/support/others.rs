//! Programs run as other users. Requires root.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artifacts::artifacts;
use crate::mount::Mount;

/// Returns the built tree at a path that all users can read: the original, or a copy in `directory`, which
/// all users must be able to read.
pub fn tree_for_all(directory: &Path) -> PathBuf {
    let dist = artifacts().dist();
    if is_open_to_all(dist) {
        return dist.to_owned();
    }
    let copy = directory.join("dist");
    for name in ["bin", "lib", "simgpu"] {
        let (from, to) = (dist.join(name), copy.join(name));
        if to.exists() {
            continue;
        }
        fs::create_dir_all(&to).expect("the directory can be created");
        for entry in fs::read_dir(&from).expect("the tree is readable") {
            let entry = entry.expect("an entry");
            copy_program(&entry.path(), &to.join(entry.file_name()));
        }
    }
    copy
}

/// Returns a path where all users can execute the program: the original, or a copy in `directory`.
pub fn program_for_all(program: &Path, directory: &Path) -> PathBuf {
    if is_open_to_all(program) {
        return program.to_owned();
    }
    let copy = directory.join(program.file_name().expect("a program has a name"));
    if !copy.exists() {
        copy_program(program, &copy);
    }
    copy
}

/// Copies a program that is executed right away. The copy runs in a separate process: otherwise a child
/// started by another test at this moment could inherit our descriptor open for writing, and execution would
/// fail (`ETXTBSY`).
///
/// # Panics
/// If it cannot be copied.
#[track_caller]
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().expect("cp runs");
    assert!(status.success(), "cannot copy {}", from.display());
}

fn is_open_to_all(path: &Path) -> bool {
    path.ancestors()
        .all(|path| fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o001 != 0))
}

impl Mount {
    /// Returns the command of [`Self::command`] run as another user, in the group with the same number only.
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

    /// Returns the command of [`Self::gcgroupfs`] run as another user.
    pub fn gcgroupfs_of(&self, uid: u32, arguments: &[&str]) -> Command {
        let program = tree_for_all(self.root()).join("bin/gcgroupfs");
        let mut command = self.command_of(uid, &program);
        command.env_remove("LD_PRELOAD").args(arguments);
        command
    }

    /// Runs a script at the mount point as another user. Returns whether it succeeded, and its whole output.
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
