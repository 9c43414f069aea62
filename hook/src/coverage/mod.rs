//! What becomes of every function of the driver: hooked, left to the driver for a reason, or escaping us as yet.
//!
//! Hooked functions are those of `table`, and listed nowhere else. All others stand here in families, by exact name and
//! with the reason, so that what a new driver adds is in neither and fails the test below. `hook/COVERAGE.md` is made
//! by that test: `UPDATE=1 cargo test -p gcgroup-hook coverage`.

mod cuda;
#[cfg(test)]
mod nvml;
#[cfg(test)]
mod report;

use crate::rows::without_twin;

/// Functions that are not hooked, for one reason.
#[derive(Debug)]
struct Family {
    #[cfg_attr(not(test), allow(dead_code, reason = "for the report"))]
    how: How,
    #[cfg_attr(not(test), allow(dead_code, reason = "for the report"))]
    why: &'static str,
    /// Sorted. A name stands for its twin for the per-thread default stream as well.
    names: &'static [&'static str],
}

/// Whether it is right that a function is not hooked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum How {
    /// Memory or work passes uncounted, or a freeze does not hold it.
    Escapes,
    /// Nothing is lost by leaving it to the driver.
    Passed,
}

/// Whether `name`, as `cuGetProcAddress` is asked for it, is a function that is left to the driver for a reason.
pub(crate) fn is_left_alone(name: &[u8]) -> bool {
    has(cuda::FAMILIES, name).is_some()
}

fn has(families: &'static [Family], name: &[u8]) -> Option<&'static Family> {
    let name = without_twin(name);
    let is_in = |family: &&Family| {
        family
            .names
            .binary_search_by(|known| known.as_bytes().cmp(name))
            .is_ok()
    };
    families.iter().find(is_in)
}
