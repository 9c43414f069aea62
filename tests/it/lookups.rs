//! Tests look-ups by `cuGetProcAddress`: the simulated driver answers according to its table of names, and
//! through the hook every look-up has the same result, status and symbol.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use support::{artifacts, c_program, repository};
use tempfile::TempDir;

use crate::hooked::NAMES as HOOKED;

/// CUDA version of the simulated driver.
const DRIVER: i32 = 13050;
/// File name of the library that contains the hooked functions.
const HOOK: &str = "libgcgroup_hook.so";
/// Files of look-ups recorded from clients at their start.
const RECORDED: [&str; 3] = [
    "cudart-12.8.lookups.tsv",
    "cudart-13.5.lookups.tsv",
    "numba-cuda-0.30.lookups.tsv",
];

/// The table of names, `simgpu/data/cuda-names.tsv`: by name and version, the symbols of the legacy and the
/// per-thread default stream.
pub(crate) struct Names(BTreeMap<String, BTreeMap<i32, [Option<String>; 2]>>);

/// Result of one look-up: result of the five-argument function, its status, and a symbol.
type Answer = (i32, i32, String);

impl Names {
    pub(crate) fn read() -> Names {
        let mut names: BTreeMap<String, BTreeMap<i32, [Option<String>; 2]>> = BTreeMap::new();
        for line in lines("tests/simgpu/data/cuda-names.tsv") {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, version, flavour, symbol] = fields[..] else {
                panic!("{line}")
            };
            let versions = names.entry(name.to_owned()).or_default();
            let flavours = versions.entry(version.parse().unwrap()).or_default();
            let entry = &mut flavours[usize::from(flavour != "legacy")];
            assert_eq!(entry.replace(symbol.to_owned()), None, "{line}");
        }
        Names(names)
    }

    /// Returns every exported symbol that a look-up can return, with the version that introduced it.
    pub(crate) fn symbols(&self) -> BTreeMap<&str, i32> {
        let versions = self.0.values().flatten();
        versions
            .flat_map(|(since, flavours)| flavours.iter().flatten().map(|s| (s.as_str(), *since)))
            .collect()
    }

    fn answer(&self, name: &str, version: i32, flags: u64) -> Answer {
        let nothing = |result, status| (result, status, "none".to_owned());
        if version > DRIVER || flags > 2 {
            return nothing(1, -1);
        }
        let Some(versions) = self.0.get(name) else {
            return nothing(0, 1);
        };
        let found = versions
            .range(..=version)
            .rev()
            .find_map(|(_, [legacy, per_thread])| {
                let per_thread = per_thread.as_ref().filter(|_| flags == 2);
                per_thread.or(legacy.as_ref())
            });
        found.map_or_else(|| nothing(0, 2), |symbol| (0, 0, symbol.clone()))
    }

    /// Returns each name at each version at which any name changed, and one beyond, with every flag.
    fn every_lookup(&self) -> String {
        let mut versions: BTreeSet<i32> = self
            .0
            .values()
            .flat_map(|versions| versions.keys().copied())
            .collect();
        versions.extend([0, -1, DRIVER + 10, i32::MAX]);
        let mut all = String::new();
        for name in self
            .0
            .keys()
            .map(String::as_str)
            .chain(["", "cu", "cuNoSuchFunction", "cuMemAlloc_v2"])
        {
            for version in &versions {
                for flags in [0, 1, 2, 3, 4] {
                    all += &format!("{name}\t{version}\t{flags}\n");
                }
            }
        }
        all
    }
}

/// The look-up function to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// `cuGetProcAddress`, without a status.
    Four,
    /// `cuGetProcAddress_v2`.
    Five,
}

/// Returns the line that the program prints for a look-up, without the object.
fn expected(names: &Names, lookup: &str, ask: Ask) -> String {
    let fields: Vec<&str> = lookup.split('\t').collect();
    let [name, version, flags] = fields[..] else {
        panic!("{lookup}")
    };
    let (result, status, symbol) = names.answer(name, version.parse().unwrap(), flags.parse().unwrap());
    let (result, status) = match ask {
        Ask::Five => (result, status.to_string()),
        Ask::Four if status > 0 => (500, "-".to_owned()),
        Ask::Four => (result, "-".to_owned()),
    };
    // A refused call leaves the caller's pointer unchanged.
    let symbol = if result == 1 {
        "untouched".to_owned()
    } else {
        symbol
    };
    format!("{lookup}\t{result}\t{status}\t{symbol}")
}

/// Replays `lookups` in a program. Returns for each line the answer and the object.
fn replay(names: &Names, lookups: &str, ask: Ask, hooked: bool) -> Vec<(String, String)> {
    let directory = TempDir::new().unwrap();
    let symbols = directory.path().join("symbols");
    let all: String = names
        .symbols()
        .keys()
        .map(|symbol| format!("{symbol}\n"))
        .collect();
    fs::write(&symbols, all).unwrap();
    let mut command = Command::new(c_program("lookups.c", &[]));
    command
        .arg(&symbols)
        .args((ask == Ask::Four).then_some("4"))
        .env("LD_LIBRARY_PATH", artifacts().simgpu())
        .env("SIMGPU_DIR", directory.path())
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if hooked {
        command.env("LD_PRELOAD", artifacts().preload());
    }
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let text = lookups.to_owned();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let answers = String::from_utf8(output.stdout).unwrap();
    answers
        .lines()
        .map(|line| line.rsplit_once('\t').unwrap_or_else(|| panic!("{line}")))
        .map(|(answer, object)| (answer.to_owned(), object.to_owned()))
        .collect()
}

/// Returns all look-ups to replay: the recorded ones and each that the table distinguishes.
fn every_lookup(names: &Names) -> String {
    let recorded = RECORDED
        .iter()
        .flat_map(|file| lines(&format!("tests/data/{file}")));
    let recorded: String = recorded.map(|line| line + "\n").collect();
    assert!(recorded.lines().count() > 1300, "look-ups are missing");
    recorded + &names.every_lookup()
}

#[test]
fn simulated_driver_answers_every_lookup_as_its_table() {
    let names = Names::read();
    let lookups = every_lookup(&names);
    for ask in [Ask::Five, Ask::Four] {
        let answers = replay(&names, &lookups, ask, false);
        assert_eq!(answers.len(), lookups.lines().count());
        for (lookup, (answer, object)) in lookups.lines().zip(&answers) {
            assert_eq!(*answer, expected(&names, lookup, ask), "{ask:?}");
            assert!(
                ["libcuda.so.1", "none"].contains(&object.as_str()),
                "{answer}: {object}"
            );
        }
    }
}

#[test]
fn every_lookup_through_the_hook_finds_the_same() {
    let names = Names::read();
    let lookups = every_lookup(&names);
    for ask in [Ask::Five, Ask::Four] {
        let bare = replay(&names, &lookups, ask, false);
        let hooked = replay(&names, &lookups, ask, true);
        assert_eq!(bare.len(), hooked.len());
        for ((bare, _), (hooked, object)) in bare.iter().zip(&hooked) {
            assert_eq!(hooked, bare, "{ask:?}");
            let symbol = hooked.rsplit('\t').next().unwrap();
            let ours = HOOKED.contains(&symbol);
            assert_eq!(object == HOOK, ours, "{ask:?}: {hooked} lies in {object}");
        }
    }
}

/// Returns the lines of a list in the repository, without comments.
pub(crate) fn lines(file: &str) -> Vec<String> {
    let text = fs::read_to_string(repository().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}
