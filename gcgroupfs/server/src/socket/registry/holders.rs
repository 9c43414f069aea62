//! Processes that hold settings of others.

use nix::errno::Errno;
use tracing::debug;

use super::{Registry, key};
use crate::journal::Key;
use gcgroupfs_model::tree::{Caller, Holder, NewHold};
use gcgroupfs_sys::process::Peer;

impl Registry {
    /// Holds settings for a process until it ends. `number` is its number unless it has one.
    ///
    /// # Errors
    /// `EDQUOT` if its user has too many processes; as [`Tree::hold`](gcgroupfs_model::tree::Tree::hold).
    /// With the reason in words.
    pub(in crate::socket) fn hold(
        &mut self,
        number: u64,
        peer: Peer,
        new: &[NewHold<'_>],
    ) -> Result<(), (i32, String)> {
        let errno = |errno: Errno| (errno as i32, String::new());
        let key = key(&peer);
        if !self.live.has_room_for(key, peer.uid) {
            return Err(errno(Errno::EDQUOT));
        }
        let holder = Holder {
            pid: key.pid,
            start_time: key.start_time,
            uid: peer.uid,
        };
        let caller = Caller {
            uid: peer.uid,
            gid: peer.gid,
            pid: peer.pid,
        };
        // Watched first, so that the end of the process is always noticed.
        self.live.add(number, key, peer.uid, peer.pidfd).map_err(errno)?;
        let change = self.tree.hold(holder, caller, new);
        self.tree
            .finish(change.map_err(|error| (error.errno(), error.to_string()))?);
        if self.may_debug_of(holder.uid) {
            let (pid, uid) = (holder.pid, holder.uid);
            let texts = new.iter().map(|new| format!("{} {}", new.setting.name, new.text));
            let mut texts: Vec<String> = texts.collect();
            let nr_holds = texts.len();
            texts.sort_unstable();
            texts.dedup();
            let nr_targets = nr_holds / texts.len().max(1);
            let what = texts.join(", ");
            debug!("{pid} of user {uid} holds {what:?} on processes and groups: {nr_targets}");
        }
        Ok(())
    }

    /// Returns the processes that hold settings or the groups of their jobs.
    pub(super) fn holders(&self) -> Vec<Key> {
        let holders = self.tree.holders().into_iter();
        holders.map(|(pid, start_time)| Key { pid, start_time }).collect()
    }
}
