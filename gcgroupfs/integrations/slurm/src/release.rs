//! Releases of Slurm that the plugin serves: those that its tests run with.

/// A release of Slurm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Release {
    /// Number in the name of its `libslurm.so`, by which a running Slurm is recognized.
    library: u32,
    year: u32,
    month: u32,
}

const fn release(library: u32, year: u32, month: u32) -> Release {
    Release { library, year, month }
}

/// Served releases. A row that is added needs a run of `scripts/test-cluster.sh slurm` with that release.
const SERVED: [Release; 3] = [release(38, 22, 5), release(42, 24, 11), release(45, 26, 5)];

impl Release {
    /// Returns the served release with this `libslurm.so`.
    pub(crate) fn with_library(library: u32) -> Option<Self> {
        SERVED.into_iter().find(|served| served.library == library)
    }

    /// Returns `SLURM_VERSION_NUMBER` of the release's first version. Slurm compares year and month.
    pub(crate) const fn version_number(self) -> u32 {
        self.year << 16 | self.month << 8
    }
}

/// Returns the error for a Slurm with another `libslurm.so`.
pub(crate) fn refusal(library: u32) -> String {
    let names = SERVED.map(|served| format!("{}.{:02}", served.year, served.month));
    format!(
        "this plugin serves Slurm {}, not the one with libslurm.so.{library}: use the scripts in its place",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_releases_are_recognized_by_their_library() {
        let number = |library| Release::with_library(library).map(Release::version_number);
        assert_eq!(number(42), Some(0x18_0b00));
        assert_eq!(number(43), None);
    }

    #[test]
    fn refusal_names_the_served_releases() {
        assert!(refusal(43).contains("Slurm 22.05, 24.11, 26.05, not the one with libslurm.so.43"));
    }
}
