//! Runs a model, and tests for each ordering that it uses whether it notices a weaker one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use gcgroup_abi::sync::{Site, run, sites, weaken};

/// Maximum number of preemptions in one run. Most faults need one or two.
const PREEMPTIONS: usize = 2;

/// Runs a model in all its interleavings.
///
/// # Panics
/// If an assertion of the model fails in any of them.
pub(crate) fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(PREEMPTIONS);
    builder.check(move || run(&model));
}

/// Returns whether a model fails.
pub(crate) fn finds_fault(model: impl Fn() + Send + Sync + 'static) -> bool {
    catch_unwind(AssertUnwindSafe(|| check(model))).is_err()
}

/// Runs a model unchanged, and then once with each weaker ordering at each site of gcgroup-abi that it
/// passes. Returns the sites where every weaker ordering makes the model fail, each as "FILE: LINE OF
/// SOURCE", sorted.
///
/// # Panics
/// If the unchanged model fails.
pub(crate) fn needed(model: impl Fn() + Send + Sync + 'static) -> Vec<String> {
    let model = Arc::new(model);
    let once = || {
        let model = model.clone();
        move || model()
    };
    check(once());
    let mut needed = Vec::new();
    for (site, access, ordering) in sites().into_iter().filter(|(site, ..)| is_of_abi(site)) {
        let name = format!("{}: {}", file(site), line(site));
        let is_noticed = |weaker| {
            let is_noticed = weaken(site, weaker, || finds_fault(once()));
            println!(
                "{name}: {weaker:?} is {}noticed",
                if is_noticed { "" } else { "not " }
            );
            is_noticed
        };
        // Counts all instead of stopping at the first, so that all are printed.
        if access
            .weaker(ordering)
            .into_iter()
            .filter(|weaker| !is_noticed(*weaker))
            .count()
            == 0
        {
            needed.push(name);
        }
    }
    needed.sort();
    needed
}

fn is_of_abi(site: &Site) -> bool {
    site.file().contains("abi/src/")
}

fn file(site: Site) -> String {
    let name = Path::new(site.file()).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the source line of a site, without indentation.
fn line(site: Site) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3);
    let path = root.expect("three folders down").join(site.file());
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let line = text.lines().nth(site.line() as usize - 1);
    line.unwrap_or_default().trim().to_owned()
}
