//! Tests random sequences of every way to allocate and free. After each call the ledger matches the test's
//! model and the simulated driver's allocations, no limit is exceeded, and every answer is the driver's
//! answer to a program without the library, except refusals due to a limit.
//!
//! `PROPTEST_CASES` sets the number of sequences.

mod model;
mod step;
mod twins;

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestError, TestRunner};
use support::Mount;

use step::step;
use twins::Twins;

const MIB: u64 = 1 << 20;
/// Number of variables that hold blocks and handles.
const VARIABLES: usize = 30;
/// Number of addresses to map at, and their distance in bytes: more than `size` returns, so that no mapping
/// reaches the next address.
const PLACES: usize = 8;
const PLACE: u64 = 64 * MIB;
/// Number of pools: the device's own and two created ones.
const POOLS: usize = 3;
/// Growth step in bytes of the simulated driver's pools, used to predict charges.
const GROWTH: u64 = 32 * MIB;

#[test]
fn ledger_is_correct_after_every_random_call() {
    // Each of the two programs has a GPU to itself.
    let (mount, other) = (Mount::new(), Mount::new());
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|text| text.parse().ok());
    let mut runner = TestRunner::new(Cases {
        cases: cases.unwrap_or(24),
        // Bounds the time spent on shrinking a failing sequence.
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
