//! Row of the screen: a process or a group.

use super::activity::Activity;
use super::target::Target;
use gcgroup_client::node::Usage;

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) target: Target,
    /// Number of groups above it on the screen.
    pub(super) depth: usize,
    /// Printable name: the program's, or the last part of the group's path.
    pub(super) name: String,
    pub(super) user: String,
    /// Printable path of the group, or of the process's group; empty if it is hidden.
    pub(super) group: String,
    /// Indexes of the GPUs in use.
    pub(super) gpus: Vec<usize>,
    pub(super) usage: Usage,
    pub(super) activity: Activity,
    pub(super) is_folded: bool,
    /// Rest of the group's lease in words; empty without a lease.
    pub(super) lease: String,
}

impl Row {
    pub(super) fn is_group(&self) -> bool {
        matches!(self.target, Target::Group(_))
    }

    /// Returns whether the row has the text, in lower case, in its name, pid, user or group.
    pub(super) fn matches(&self, text: &str) -> bool {
        let own = [
            self.target.path(),
            self.name.clone(),
            self.user.clone(),
            self.group.clone(),
        ];
        own.iter().any(|own| own.to_lowercase().contains(text))
    }
}
