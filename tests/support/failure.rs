//! Files that a failed test leaves: its daemons' logs with the output of their helpers, its processes' output
//! and traces, and what they were doing, in one directory that the test's output names.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::artifacts::target;

thread_local! {
    /// The directory, once it is made.
    static DIRECTORY: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Keeps a file of the calling thread's test, which has failed.
pub(crate) fn keep(name: &str, contents: impl AsRef<[u8]>) {
    let path =
        DIRECTORY.with_borrow_mut(|directory| directory.get_or_insert_with(directory_of_test).join(name));
    if let Err(error) = fs::write(&path, contents) {
        eprintln!("{}: {error}", path.display());
    }
}

/// Returns a command that runs one ignored test of this program, with its temporary files in a directory.
pub fn ignored_test(name: &str, temporary: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the test program has a path"));
    command
        .args(["--ignored", "--exact", name])
        .env("TMPDIR", temporary);
    command
}

fn directory_of_test() -> PathBuf {
    let test = thread::current().name().unwrap_or("thread").replace("::", ".");
    let name = format!("{test}-{}", std::process::id());
    let directory = target().join("test-failures").join(name);
    if let Err(error) = fs::create_dir_all(&directory) {
        eprintln!("{}: {error}", directory.display());
    }
    eprintln!("the failed test's files: {}", directory.display());
    directory
}
