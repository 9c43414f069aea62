//! Files that a failed test leaves: its daemons' logs with the output of their helpers, its processes' output
//! and traces, and what they were doing, in one directory that the test's output names.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
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

fn directory_of_test() -> PathBuf {
    let test = thread::current().name().unwrap_or("thread").replace("::", ".");
    let name = format!("{test}-{}", std::process::id());
    let directory = target().join("test-failures").join(name);
    let made = fs::create_dir_all(&directory);
    eprintln!("the failed test's files: {} ({made:?})", directory.display());
    directory
}
