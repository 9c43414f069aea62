//! Random sequences of every way to allocate and to free: after each call the ledger says what the program's
//! own books say and what the simulated driver really holds; no limit is passed; and every answer is that of
//! the driver to a program without the library, but for a refusal that a limit calls for.
//!
//! `PROPTEST_CASES` says how many sequences.

mod model;
mod step;
mod twins;

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestError, TestRunner};
use support::Mount;

use step::step;
use twins::Twins;

const MIB: u64 = 1 << 20;
/// Variables that hold blocks and handles.
const VARIABLES: usize = 30;
/// Places to map at, and how far apart they are.
const PLACES: usize = 8;
const PLACE: u64 = 32 * MIB;
/// Pools: the device's own, and two that are created.
const POOLS: usize = 3;
/// What the simulated driver's pools grow by, and so how much is foretold.
const GROWTH: u64 = 32 * MIB;

#[test]
fn the_ledger_is_the_truth_after_every_call() {
    // Each twin has a GPU to itself.
    let (mount, other) = (Mount::new(), Mount::new());
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|text| text.parse().ok());
    let mut runner = TestRunner::new(Cases {
        cases: cases.unwrap_or(24),
        // A sequence that fails may take its time over it.
        max_shrink_iters: 25,
        failure_persistence: None,
        ..Cases::default()
    });
    let steps = prop::collection::vec(step(), 1..80);
    let outcome = runner.run(&steps, |steps| {
        let mut twins = Twins::new(&mount, &other);
        for (number, step) in steps.iter().enumerate() {
            twins.go(step)?;
            let checked = twins.check();
            prop_assert!(checked.is_ok(), "after step {number}, {step:?}: {checked:?}");
        }
        Ok(())
    });
    match outcome {
        Err(TestError::Fail(why, steps)) => {
            let steps: String = steps.iter().map(|step| format!("    {step:?}\n")).collect();
            panic!("\n{steps}{why}");
        }
        other => other.expect("the sequences can be made"),
    }
}
