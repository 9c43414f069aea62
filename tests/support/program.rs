//! C test programs from `tests/programs`.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::artifacts::{repository, target};
use crate::emulated;

/// Compiles `tests/programs/<source>` with gcc, for the processor of the tested libraries, and these flags
/// (placed after the source, so `-l` is possible). A program compiled from the same text, headers and flags
/// is reused.
pub fn c_program(source: &str, flags: &[&str]) -> PathBuf {
    c_program_by(emulated::compiler(), source, flags)
}

/// Compiles a program as [`c_program`] does, with another compiler such as `musl-gcc`.
pub fn c_program_by(compiler: &str, source: &str, flags: &[&str]) -> PathBuf {
    let path = repository().join("tests/programs").join(source);
    let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut hasher = DefaultHasher::new();
    (&text, headers(), compiler, flags).hash(&mut hasher);
    let programs = target().join("test-programs");
    fs::create_dir_all(&programs).expect("the target directory takes a directory");
    let stem = source.trim_end_matches(".c");
    let program = programs.join(format!("{stem}-{:016x}", hasher.finish()));
    if program.exists() {
        return program;
    }
    // First under a name unique to this call: another thread or process may be compiling the same program.
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let call = CALLS.fetch_add(1, Relaxed);
    let fresh = program.with_extension(format!("{}-{call}", std::process::id()));
    let output = Command::new(compiler)
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&fresh)
        .arg(&path)
        .args(flags)
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}; run scripts/setup-debian.sh"));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{compiler} {source}: {}\n{words}",
        output.status
    );
    fs::rename(&fresh, &program).expect("a file can be renamed in its directory");
    program
}

/// Returns the text of every header that a program may include, by path.
fn headers() -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(repository().join("tests/programs")).expect("the programs are there");
    let paths = entries.map(|entry| entry.expect("the entry can be read").path());
    let headers = paths.filter(|path| path.extension().is_some_and(|extension| extension == "h"));
    headers
        .map(|path| {
            let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            (path, text)
        })
        .collect()
}
