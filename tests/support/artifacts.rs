//! The built tree. `cargo test` builds no other package's libraries and binaries, so the first test that
//! needs them runs the build script.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::SystemTime;

use nix::fcntl::{Flock, FlockArg};

/// Files and directories whose changes require a build.
const INPUTS: [&str; 9] = [
    "Cargo.toml",
    "Cargo.lock",
    "gcgroupfs",
    "hook",
    "scripts",
    "tests/bench/contention",
    "tests/data",
    "tests/load",
    "tests/simgpu",
];

/// The tree built by `scripts/build.sh`.
#[derive(Debug)]
pub struct Artifacts {
    dist: PathBuf,
    /// The tree of governed programs and their libraries: `dist`, or one for another processor.
    programs: PathBuf,
}

impl Artifacts {
    pub fn dist(&self) -> &Path {
        &self.dist
    }

    /// Path of the daemon and command line.
    pub fn gcgroupfs(&self) -> PathBuf {
        self.dist.join("bin/gcgroupfs")
    }

    /// Path of the workload program.
    pub fn load(&self) -> PathBuf {
        self.programs.join("bin/gcgroup-load")
    }

    /// Path of the preloaded library.
    pub fn preload(&self) -> PathBuf {
        self.programs.join("lib/libgcgroup.so")
    }

    /// Path of the hook library.
    pub fn hook(&self) -> PathBuf {
        self.programs.join("lib/libgcgroup_hook.so")
    }

    /// Directory of the simulated driver's libraries, for governed programs.
    pub fn simgpu(&self) -> PathBuf {
        self.programs.join("simgpu")
    }

    /// Directory of the simulated driver's libraries, for the daemon.
    pub(crate) fn simgpu_of_daemon(&self) -> PathBuf {
        self.dist.join("simgpu")
    }
}

/// Returns the built tree: `GCGROUP_DIST` if set, otherwise one in the target directory, which is built first
/// unless it is newer than all inputs. Concurrent processes wait for the one that builds. Governed programs
/// come from the tree `GCGROUP_TEST_EMULATED` if set.
pub fn artifacts() -> &'static Artifacts {
    static ARTIFACTS: OnceLock<Artifacts> = OnceLock::new();
    ARTIFACTS.get_or_init(|| {
        let canonical = |tree: PathBuf| {
            let found = tree.canonicalize();
            found.unwrap_or_else(|error| panic!("{}: {error}", tree.display()))
        };
        let dist = canonical(std::env::var_os("GCGROUP_DIST").map_or_else(built, PathBuf::from));
        let programs = emulated_tree().map_or_else(|| dist.clone(), canonical);
        Artifacts { dist, programs }
    })
}

/// Returns the tree of programs and libraries for AArch64, if tests are to run these.
pub(crate) fn emulated_tree() -> Option<PathBuf> {
    std::env::var_os("GCGROUP_TEST_EMULATED").map(PathBuf::from)
}

fn built() -> PathBuf {
    let target = target();
    let dist = target.join("dist-debug");
    fs::create_dir_all(&dist).expect("the target directory takes a directory");
    let lock = File::create(target.join("dist-debug.lock")).expect("the target directory takes a file");
    let _lock = Flock::lock(lock, FlockArg::LockExclusive)
        .map_err(|(_, errno)| errno)
        .expect("a lock");

    let stamp = dist.join(".built");
    if changed(&stamp).is_ok_and(|built| newest_input() < built) {
        return dist;
    }
    // Timestamp of the start of the build: files changed during it are newer.
    let fresh = dist.join(".building");
    File::create(&fresh).expect("the tree takes a file");
    let output = Command::new(repository().join("scripts/build.sh"))
        .arg("--debug")
        .env("CARGO_TARGET_DIR", &target)
        .env("DIST", &dist)
        .stdin(Stdio::null())
        .output()
        .expect("scripts/build.sh starts");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "scripts/build.sh --debug: {}\n{words}",
        output.status
    );
    fs::rename(&fresh, &stamp).expect("the stamp can be renamed");
    dist
}

/// Returns the root of the repository.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns Cargo's target directory: the test program lies in its `debug/deps`.
pub(crate) fn target() -> PathBuf {
    let program = std::env::current_exe().expect("a program has a path");
    program
        .ancestors()
        .nth(3)
        .expect("the test program lies in target/debug/deps")
        .to_owned()
}

/// Returns the Python interpreter with the real clients: of `GCGROUP_TEST_VENV`, or of the repository's
/// `.venv`.
pub fn python() -> PathBuf {
    let venv =
        std::env::var_os("GCGROUP_TEST_VENV").map_or_else(|| repository().join(".venv"), PathBuf::from);
    let python = venv.join("bin/python");
    assert!(
        python.exists(),
        "{} is missing: run scripts/setup-debian.sh",
        python.display()
    );
    python
}

fn changed(path: &Path) -> std::io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}

fn newest_input() -> SystemTime {
    INPUTS
        .iter()
        .map(|input| newest(&repository().join(input)))
        .max()
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Returns the last modification time of a file, or of anything in a directory.
fn newest(path: &Path) -> SystemTime {
    let own = changed(path).unwrap_or(SystemTime::UNIX_EPOCH);
    let Ok(entries) = fs::read_dir(path) else {
        return own;
    };
    entries
        .flatten()
        .map(|entry| newest(&entry.path()))
        .fold(own, SystemTime::max)
}
