//! Expiry of leases, and idle processes.

use std::time::Duration;

use tracing::info;

use super::Server;
use gcgroupfs_model::event::Event;
use gcgroupfs_model::tree::Expired;

/// Longest time between two looks for expired leases. It is the shortest lease, too.
const LEASE_LOOK: Duration = Duration::from_secs(1);

impl Server {
    /// Lets leases expire, and idle processes leave. Returns when to look again: a lease that is written
    /// meanwhile takes at least [`LEASE_LOOK`].
    pub(super) fn expire_leases(&mut self) -> Duration {
        let (expired, next_msec) = self.tree.expire_leases();
        for Expired { path, uid, action } in expired {
            self.registry.activity_log().note(Event {
                what: "lease".to_owned(),
                uid,
                group: Some(path.clone()),
                text: format!("has expired: {action}"),
                ..Event::default()
            });
            if self.registry.may_log_of(uid) {
                info!("the lease of {path:?} has expired: {action}");
            }
        }
        let next_msec = next_msec.into_iter().chain(self.tree.judge_idle()).min();
        let next = next_msec.map_or(LEASE_LOOK, |msec| Duration::from_millis(msec).min(LEASE_LOOK));
        next.max(Duration::from_millis(1))
    }
}
