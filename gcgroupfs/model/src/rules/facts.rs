//! Facts about a process that rules examine.

use std::path::PathBuf;

use crate::text::Comm;

/// One process at the time of the examination.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    pub pid: u32,
    /// Effective ids.
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Name of `uid`, if it has one and a rule needs it.
    pub user: Option<String>,
    /// Short name, which the process may choose freely.
    pub comm: Comm,
    /// The program's file, as the process's mount namespace names it; `None` without permission to read it.
    pub exe: Option<PathBuf>,
    /// Paths of its kernel cgroups: of version 2 first, then of the hierarchies of version 1.
    pub cgroups: Vec<String>,
    /// Name of its container in its Kubernetes pod, if it is known and a rule needs it.
    pub container: Option<String>,
    /// The group that it asks for.
    pub wish: Option<String>,
}

impl Facts {
    /// Returns whether it is in the group, by its effective id or a supplementary one.
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
