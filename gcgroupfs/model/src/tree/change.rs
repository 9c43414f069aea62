//! Changes: the consequences of what a user has requested, for the caller to carry out.

use super::{Notice, State, Tree, UserChange};

/// Consequences of a requested change. The change itself is in force: blocks and gates were stored under the
/// tree's lock.
///
/// The caller passes it to [`Tree::announce`] at once, and to [`Tree::store`] before it answers the request;
/// or to [`Tree::finish`], which does both. What the daemon changes by itself is finished before the tree's
/// function returns.
#[must_use = "the change is neither announced nor durable"]
#[derive(Debug)]
pub struct Change {
    /// For listeners that never wait: processes are rung, pollers woken.
    immediate: Vec<Notice>,
    /// Records that must be in the journal before the request is answered.
    durable: Vec<Notice>,
    by_user: Option<Box<UserChange>>,
}

impl Change {
    pub(super) fn new(immediate: Vec<Notice>) -> Self {
        // A freeze of a group rings thousands of processes, and thousands of changes may wait for the disk.
        let durable = immediate.iter().filter(|notice| notice.is_of_record());
        Self {
            durable: durable.cloned().collect(),
            immediate,
            by_user: None,
        }
    }

    /// Adds the requesting user and process, for the log.
    pub(crate) fn by_user(mut self, change: Option<UserChange>) -> Self {
        self.by_user = change.map(Box::new);
        self
    }

    /// Returns a change that has no consequences.
    pub fn none() -> Self {
        Self::new(Vec::new())
    }

    /// Returns whether [`Tree::store`] must be called before the request is answered.
    pub fn must_be_stored(&self) -> bool {
        !self.durable.is_empty()
    }
}

impl Tree {
    /// Tells the listeners that never wait, and returns the rest of the change.
    pub fn announce(&self, mut change: Change) -> Change {
        self.deliver(&std::mem::take(&mut change.immediate), false);
        if let Some(by_user) = change.by_user.take() {
            let listeners = self.listeners.read_recursive();
            listeners
                .iter()
                .for_each(|listener| listener.user_change(&by_user));
        }
        change
    }

    /// Has the records written to the journal; waits for the disk.
    pub fn store(&self, Change { durable, .. }: Change) {
        self.deliver(&durable, true);
    }

    /// Announces and stores a change; waits for the disk.
    pub fn finish(&self, change: Change) {
        self.store(self.announce(change));
    }

    /// Makes a change by the daemon itself: runs `body` under the lock, then tells all listeners its notices.
    pub(super) fn update<T>(&self, body: impl FnOnce(&mut State, &mut Vec<Notice>) -> T) -> T {
        let mut notices = Vec::new();
        let result = body(&mut self.state.lock(), &mut notices);
        self.tell(&notices);
        result
    }

    /// Tells all listeners of a change that the daemon made by itself.
    pub(super) fn tell(&self, notices: &[Notice]) {
        self.deliver(notices, false);
        self.deliver(notices, true);
    }

    fn deliver(&self, notices: &[Notice], may_wait: bool) {
        if notices.is_empty() {
            return;
        }
        // A listener's action may cause further notices.
        for listener in self.listeners.read_recursive().iter() {
            if listener.may_wait() == may_wait {
                listener.notices(notices);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::file::{Node, resolve};
    use crate::tree::Listener;
    use crate::tree::fixture::{ROOT, World};

    struct Slow(Mutex<Vec<Notice>>);

    impl Listener for Slow {
        fn notice(&self, notice: &Notice) {
            self.0.lock().push(notice.clone());
        }

        fn may_wait(&self) -> bool {
            true
        }
    }

    fn freeze(world: &World, text: &str) -> Change {
        let Ok(Node::File(directory, file)) = resolve(&world.tree, "100/compute.freeze") else {
            panic!("no such file")
        };
        file.store(&world.tree, directory, ROOT, text.as_bytes()).unwrap()
    }

    #[test]
    fn change_is_announced_before_it_is_stored() {
        let world = World::new(1);
        let slow = Arc::new(Slow(Mutex::default()));
        world.tree.listen(slow.clone());
        let id = world.join(100);
        world.take_notices();
        slow.0.lock().clear();
        let told = || (world.take_notices(), std::mem::take(&mut *slow.0.lock()));

        let change = freeze(&world, "1");
        assert!(change.must_be_stored());
        assert_eq!(world.show("100/compute.freeze"), "1\n");
        assert_eq!(told(), (vec![], vec![]));
        let change = world.tree.announce(change);
        assert_eq!(
            told(),
            (vec![Notice::SettingsChanged(id), Notice::Ring(id)], vec![])
        );
        world.tree.store(change);
        assert_eq!(told(), (vec![], vec![Notice::SettingsChanged(id)]));

        let change = freeze(&world, "1");
        assert!(!change.must_be_stored(), "nothing has changed");
        world.tree.finish(change);
        assert_eq!(told(), (vec![], vec![]));
    }
}
