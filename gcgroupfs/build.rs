//! Passes the commit that is built to the compiler: `GCGROUP_COMMIT` if it is set, otherwise the one that git
//! names, or `unknown`.

use std::env;
use std::path::Path;
use std::process::Command;

/// Returns what git prints, without the final newline; `None` if it is absent or refuses.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}

/// Returns the abbreviated commit of this repository, and not of one that contains an unpacked archive.
fn commit() -> Option<String> {
    (git(&["rev-parse", "--show-prefix"])? == "gcgroupfs/").then_some(())?;
    // Grows with each commit and each change of the branch. A path that does not exist would make cargo
    // build anew each time.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=GCGROUP_COMMIT");
    let given = env::var("GCGROUP_COMMIT")
        .ok()
        .filter(|commit| !commit.is_empty());
    let commit = given.or_else(commit).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=GCGROUP_COMMIT={commit}");
}
