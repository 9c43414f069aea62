//! Names of users.

use std::collections::BTreeMap;

use nix::unistd::User;

/// Maximum number of cached names.
const MAX_USERS: usize = 1024;

/// Names of users. A look-up may ask a directory service, so names are cached.
#[derive(Debug, Default)]
pub(super) struct Users(BTreeMap<u32, String>);

impl Users {
    /// Returns the user's name, or the uid if it has none.
    pub(super) fn name(&mut self, uid: u32) -> String {
        if self.0.len() >= MAX_USERS && !self.0.contains_key(&uid) {
            self.0.clear();
        }
        let look_up = || match User::from_uid(uid.into()) {
            Ok(Some(user)) => user.name,
            _ => uid.to_string(),
        };
        self.0.entry(uid).or_insert_with(look_up).clone()
    }
}
