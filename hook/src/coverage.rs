//! Coverage of the driver's functions: each is hooked, left to the driver for a reason, or not covered yet.
//!
//! Hooked functions are the rows of `table`, whose groups have a class and a description, and are listed
//! nowhere else. All others are listed here in families, by exact name and with a reason, so that a function
//! added by a new driver is in neither and fails a test. That test also generates `hook/COVERAGE.md`:
//! `UPDATE=1 cargo test -p gcgroup-hook coverage`.

mod cuda;
#[cfg(test)]
mod tests;

use crate::rows::without_twin;

/// Functions that are hooked for the same purpose (a group of `table`), or not hooked for the same reason.
#[derive(Debug)]
pub(crate) struct Family {
    #[cfg_attr(not(test), allow(dead_code, reason = "for the report"))]
    pub(crate) how: How,
    #[cfg_attr(not(test), allow(dead_code, reason = "for the report"))]
    pub(crate) why: &'static str,
    /// If not hooked: sorted, and a name also stands for its variant for the per-thread default stream.
    pub(crate) names: &'static [&'static str],
}

/// Treatment of a function's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum How {
    /// Hooked: memory is charged, and refused beyond the limit.
    #[cfg(test)]
    Charged,
    /// Hooked: submissions are counted, and held by a freeze.
    #[cfg(test)]
    Gated,
    /// Hooked: the answer is specific to the process.
    #[cfg(test)]
    Query,
    /// Hooked: observed for what it tells about memory and submissions.
    #[cfg(test)]
    Tracked,
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
