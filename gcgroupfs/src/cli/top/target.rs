//! Name of a process or a group.

/// Names a process or a group from one snapshot to the next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Target {
    Process(u32),
    Group(String),
}

impl Target {
    /// Returns the path of the directory of control files.
    pub(super) fn path(&self) -> String {
        match self {
            Self::Process(pid) => pid.to_string(),
            Self::Group(path) => path.clone(),
        }
    }
}
