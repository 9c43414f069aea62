//! The coverage report, and tests of its completeness.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{Family, How, cuda, has, nvml};
use crate::table::ROWS;

const TABLE: &str = include_str!("../table.rs");
const CUDA_12: &str = include_str!("../../../tests/data/libcuda-12.8.symbols");
const CUDA_13: &str = include_str!("../../../tests/data/libcuda-13.5.symbols");
const NVML_12: &str = include_str!("../../../tests/data/libnvidia-ml-12.9.symbols");
const NVML_13: &str = include_str!("../../../tests/data/libnvidia-ml-13.6.added");
const SURFACE: &str = include_str!("../../../tests/data/cuda-surface.tsv");
/// Answers of `cuGetProcAddress`, which include functions that are not in the lists above.
const ASKED: &str = include_str!("../../../tests/simgpu/data/cuda-names.tsv");
const LOOKUPS: [&str; 3] = [
    include_str!("../../../tests/data/cudart-12.8.lookups.tsv"),
    include_str!("../../../tests/data/cudart-13.5.lookups.tsv"),
    include_str!("../../../tests/data/numba-cuda-0.30.lookups.tsv"),
];

/// Descriptions of the handlers of a module, by the module's name in the table: module, section, description.
const HANDLERS: &[(&str, &str, &str)] = &[
    ("linear", "charged", "linear memory"),
    (
        "pool",
        "charged",
        "memory pools, by their reserved size, and waits, in which they shrink",
    ),
    ("graph", "charged", "memory of graphs, by its reserved size"),
    (
        "ipc",
        "tracked",
        "memory of other processes and drivers: shown, not charged",
    ),
    ("sparse", "charged", "physical memory held by sparse arrays"),
    ("vmm", "charged", "physical memory by handle"),
    ("array", "charged", "arrays"),
    ("Kernel", "gated", "kernel launches"),
    (
        "graphs",
        "gated",
        "graph launches, and the number of kernels in each",
    ),
    (
        "Copy",
        "gated",
        "copies and sets; prefetch, discard, decompression",
    ),
    (
        "report",
        "query",
        "memory sizes: the program's limit instead of the device's memory",
    ),
    (
        "nvml",
        "query",
        "NVML's memory sizes and process lists: the limit, and the process itself",
    ),
    ("query", "query", "attributes of memory that swap can move"),
    (
        "swap",
        "tracked",
        "uses of memory that swap can move, or that keep it in place",
    ),
    (
        "symbols",
        "query",
        "function lookups: the hook's wrappers for the driver's functions",
    ),
    ("host", "tracked", "page-locked host memory: counted, not charged"),
    (
        "process",
        "tracked",
        "first use of the driver, when the process registers",
    ),
    ("slots", "tracked", "the thread's current device"),
    (
        "streams",
        "tracked",
        "contexts and streams: what is freed with them, and what a drain waits for",
    ),
    (
        "green",
        "tracked",
        "green contexts: parts of a primary context, with streams of their own",
    ),
    (
        "capture",
        "tracked",
        "stream captures: captured submissions do not run",
    ),
    ("reach", "tracked", "the devices that a graph works on"),
    (
        "progress",
        "tracked",
        "waits, after which submitted work has completed",
    ),
];

fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn rows() -> BTreeSet<&'static str> {
    ROWS.iter().map(|row| row.name.to_str().unwrap()).collect()
}

/// Returns the handler of each symbol as written right of the arrow in the table: a module, or a kind of
/// submission.
fn handlers() -> BTreeMap<&'static str, &'static str> {
    let (_, table) = TABLE.split_once("hooks! {").unwrap();
    let mut handlers = BTreeMap::new();
    for row in table.split("\n    fn ").skip(1) {
        let (head, rest) = row.split_once('(').unwrap();
        let (_, around) = rest.split_once("=> ").unwrap();
        let handler = match around.strip_prefix("|next| ") {
            Some(body) => body.split("::").next().unwrap(),
            None => around
                .strip_prefix("submit ")
                .unwrap()
                .split([';', ' '])
                .next()
                .unwrap(),
        };
        for name in head.split([' ', '[', ']']).filter(|name| !name.is_empty()) {
            handlers.insert(name, handler);
        }
    }
    assert_eq!(handlers.keys().copied().collect::<BTreeSet<_>>(), rows());
    handlers
}

/// Returns every name that must be accounted for.
fn names() -> BTreeSet<&'static str> {
    let answered = lines(ASKED).map(|line| line.split('\t').nth(3).unwrap());
    // Programs ask for some names that no list has.
    let asked = LOOKUPS
        .into_iter()
        .flat_map(lines)
        .map(|line| line.split('\t').next().unwrap());
    [CUDA_12, CUDA_13, NVML_12, NVML_13]
        .into_iter()
        .flat_map(lines)
        .chain(answered)
        .chain(asked.filter(|name| name.starts_with("cu")))
        .collect()
}

fn family(name: &str) -> Option<&'static Family> {
    has(cuda::FAMILIES, name.as_bytes()).or_else(|| has(nvml::FAMILIES, name.as_bytes()))
}

/// Groups names by section and reason; panics if a name is unknown.
fn sorted() -> BTreeMap<(&'static str, &'static str), Vec<&'static str>> {
    let handlers = handlers();
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut unknown = Vec::new();
    for name in names() {
        let group = if let Some(handler) = handlers.get(name) {
            let (_, how, what) = HANDLERS
                .iter()
                .find(|(module, ..)| module == handler)
                .unwrap_or_else(|| panic!("{handler}, which handles {name}, is not in HANDLERS"));
            (*how, *what)
        } else if let Some(family) = family(name) {
            (
                if family.how == How::Escapes {
                    "escapes"
                } else {
                    "passed"
                },
                family.why,
            )
        } else {
            unknown.push(name);
            continue;
        };
        all.entry(group).or_default().push(name);
    }
    assert!(
        unknown.is_empty(),
        "neither in the table nor in a family: {unknown:?}"
    );
    all
}

fn report() -> String {
    const SECTIONS: [(&str, &str); 6] = [
        (
            "charged",
            "hooked: memory is charged, and refused beyond the limit",
        ),
        ("gated", "hooked: submissions are counted, and held by a freeze"),
        ("query", "hooked: the answer is specific to the process"),
        (
            "tracked",
            "hooked: observed for what it tells about memory and submissions",
        ),
        ("escapes", "not hooked: not counted, or not held by a freeze"),
        ("passed", "not hooked: needs no hook"),
    ];
    let all = sorted();
    let of = |section: &'static str| all.iter().filter(move |((how, _), _)| *how == section);
    let mut text = String::from(
        "# Coverage\n\nCoverage of every function of libcuda 12.8 and 13.5, of functions that programs request from \
         cuGetProcAddress beyond these, and of NVML 12.9 (with hooked functions of newer versions).\nGenerated by a test from `src/table.rs` and `src/coverage`: \
         `UPDATE=1 cargo test -p gcgroup-hook coverage`.\n\n| | libcuda | NVML | |\n| --- | ---: | ---: | --- |\n",
    );
    for (section, what) in SECTIONS {
        let is_nvml = |name: &&&str| name.starts_with("nvml");
        let here = || of(section).flat_map(|(_, names)| names);
        let nvml = here().filter(is_nvml).count();
        let _ = writeln!(
            text,
            "| {section} | {} | {nvml} | {what} |",
            here().count() - nvml
        );
    }
    for (section, _) in SECTIONS {
        let _ = writeln!(text, "\n## {section}");
        for ((_, why), names) in of(section) {
            let _ = writeln!(text, "\n{why}:\n");
            for name in names {
                let _ = writeln!(text, "- {name}");
            }
        }
    }
    text
}

#[test]
fn coverage_report_agrees_with_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/COVERAGE.md");
    let report = report();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &report).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap();
    assert!(kept == report, "UPDATE=1 cargo test -p gcgroup-hook coverage");
}

#[test]
fn families_are_sorted_and_disjoint() {
    let (rows, known) = (rows(), names());
    let mut seen = BTreeSet::new();
    for family in cuda::FAMILIES.iter().chain(nvml::FAMILIES) {
        assert!(family.names.is_sorted(), "{}", family.why);
        for name in family.names {
            assert!(!rows.contains(name), "{name} is hooked, and in a family");
            assert!(seen.insert(name), "{name} is in two families");
            assert!(known.contains(name), "{name} is no function of the driver");
        }
    }
}

#[test]
fn unknown_name_is_in_no_family() {
    for name in [
        "cuMemAllocFuture",
        "cuMemAlloc_v3",
        "cuLaunchKernelEx_v2",
        "cuEventRecord_v2_ptsz",
        "cu",
        "",
    ] {
        assert!(family(name).is_none(), "{name}");
    }
    assert!(family("cuEventRecord_ptsz").is_some());
}

/// The surface is a manually written list of functions that take memory or submit work.
#[test]
fn functions_that_take_memory_or_submit_are_accounted_for() {
    let rows = rows();
    let mut checked = 0;
    for line in lines(SURFACE) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [category, name, _, twin] = fields[..] else {
            panic!("{line}")
        };
        for name in [name.to_owned(), format!("{name}{twin}")] {
            let family = family(&name);
            assert!(
                rows.contains(name.as_str()) || family.is_some(),
                "{category}: {name}"
            );
            // A family of getters must not contain a submission.
            if category.starts_with("submit.") {
                assert!(family.is_none_or(|f| !f.why.starts_with("getter")), "{name}");
            }
            checked += 1;
        }
    }
    assert!(checked > 500, "{checked}");
}

#[test]
fn allocations_launches_copies_and_sets_are_hooked() {
    let rows = rows();
    for line in lines(SURFACE) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [category, name, _, twin] = fields[..] else {
            panic!("{line}")
        };
        let is_host = name.starts_with("cuLaunchHostFunc");
        if !is_host
            && [
                "memory.linear",
                "memory.free",
                "submit.launch",
                "submit.memcpy",
                "submit.memset",
            ]
            .contains(&category)
        {
            assert!(rows.contains(name), "{name}");
            assert!(rows.contains(format!("{name}{twin}").as_str()), "{name}{twin}");
        }
    }
}
