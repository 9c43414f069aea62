//! Record of what has been carried out of the configuration's groups since the machine started, so that each
//! daemon and each reload carries out only what is new.

use std::collections::BTreeMap;

use super::{Directory, Entity, Notice, Tree};

impl Tree {
    /// Returns what has been carried out for the group of that path; `None` if nothing.
    pub(crate) fn configured(&self, path: &str) -> Option<BTreeMap<String, String>> {
        self.state.lock().configured.get(path).cloned()
    }

    /// Stores what has been carried out, and makes the group permanent.
    pub(crate) fn set_configured(&self, group: Directory, path: &str, said: BTreeMap<String, String>) {
        self.update(|state, notices| {
            if let Entity::Group(id) = group.whose()
                && let Some(group) = state.groups.get_mut(&id)
            {
                group.is_transient = false;
                notices.push(Notice::GroupChanged(id));
            }
            state.configured.insert(path.to_owned(), said);
            notices.push(Notice::RootChanged);
        });
    }
}
