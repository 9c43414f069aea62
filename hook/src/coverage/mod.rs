//! Coverage of the driver's functions: each is hooked, left to the driver for a reason, or not covered yet.
//!
//! Hooked functions are the rows of `table` and listed nowhere else. All others are listed here in families,
//! by exact name and with a reason, so that a function added by a new driver is in neither and fails the test
//! below. That test also generates `hook/COVERAGE.md`: `UPDATE=1 cargo test -p gcgroup-hook coverage`.

mod cuda;
#[cfg(test)]
mod nvml;
#[cfg(test)]
mod report;

use crate::rows::without_twin;

/// Functions that are not hooked for the same reason.
#[derive(Debug)]
struct Family {
    #[cfg_attr(not(test), allow(dead_code, reason = "for the report"))]
    how: How,
    #[cfg_attr(not(test), allow(dead_code, reason = "for the report"))]
    why: &'static str,
    /// Sorted. A name also stands for its variant for the per-thread default stream.
    names: &'static [&'static str],
}

/// The consequence of not hooking a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum How {
    /// Memory or work is not counted, or a freeze does not hold it.
    Escapes,
    /// Nothing is lost by leaving it to the driver.
    Passed,
}

/// Returns whether `name`, as passed to `cuGetProcAddress`, is a function that is left to the driver on
/// purpose.
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
