//! Deferred notices: listeners that may wait for a disk are told after a change, by a call of
//! [`Tree::tell_later`].

use std::cell::RefCell;

use super::{Notice, Tree};

thread_local! {
    /// Notices of records deferred so far, while this thread defers them.
    static PUT_OFF: RefCell<Option<Vec<Notice>>> = const { RefCell::new(None) };
}

/// Notices that listeners which may wait have not received yet.
#[must_use = "the changes must be written to the journal"]
#[derive(Debug)]
pub struct Later(Vec<Notice>);

impl Later {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Runs `change` and tells only those listeners that never wait. The others must be told by
/// [`Tree::tell_later`].
pub fn put_off<T>(change: impl FnOnce() -> T) -> (T, Later) {
    /// Ends deferral, also when the change panics.
    struct Until;
    impl Drop for Until {
        fn drop(&mut self) {
            PUT_OFF.set(None);
        }
    }
    PUT_OFF.set(Some(Vec::new()));
    let _until = Until;
    let result = change();
    (result, Later(PUT_OFF.take().unwrap_or_default()))
}

/// Defers `notices` if this thread defers them now. Returns whether it does.
pub(super) fn is_put_off(notices: &[Notice]) -> bool {
    PUT_OFF.with_borrow_mut(|put_off| match put_off {
        Some(put_off) => {
            // A freeze of a group has thousands that ring, and thousands of threads may wait here.
            put_off.extend(notices.iter().filter(|notice| notice.is_of_record()).cloned());
            true
        }
        None => false,
    })
}

impl Tree {
    /// Delivers deferred notices of records to the listeners that may wait.
    pub fn tell_later(&self, Later(notices): Later) {
        for listener in self.listeners.read_recursive().iter() {
            if listener.may_wait() {
                listener.notices(&notices);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
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

    #[test]
    fn listeners_that_may_wait_are_told_later() {
        let world = World::new(1);
        let slow = Arc::new(Slow(Mutex::default()));
        world.tree.listen(slow.clone());
        let id = world.join(100);
        world.take_notices();
        slow.0.lock().clear();
        let all = vec![Notice::SettingsChanged(id), Notice::Ring(id)];

        let (done, later) = put_off(|| world.store("100/compute.freeze", ROOT, "1"));
        assert!(done.is_ok());
        assert_eq!(
            (world.take_notices(), slow.0.lock().clone()),
            (all.clone(), vec![])
        );
        world.tree.tell_later(later);
        let of_records = vec![Notice::SettingsChanged(id)];
        assert_eq!(
            (world.take_notices(), slow.0.lock().clone()),
            (vec![], of_records)
        );

        let (_, later) = put_off(|| world.store("100/compute.freeze", ROOT, "1"));
        assert!(later.is_empty(), "nothing has changed");
        slow.0.lock().clear();
        world.store("100/compute.freeze", ROOT, "0").unwrap();
        assert_eq!(slow.0.lock().len(), 2, "notices are no longer deferred");
    }
}
