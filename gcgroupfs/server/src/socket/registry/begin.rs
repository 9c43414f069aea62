//! The start of a job.

use gcgroup_abi::message::GroupName;
use nix::errno::Errno;
use tracing::{debug, warn};

use super::super::connection::{Refused, refused, refused_by_tree};
use super::super::initial_group::{Credentials, GroupFacts, NewJob, make_job_group};
use super::super::rule_queries::JobRequest;
use super::{Registry, key};
use gcgroupfs_model::rules::{Group, Verdict};
use gcgroupfs_model::tree::Job;

impl Registry {
    /// Makes the group of a job, which is held for the process, and returns its path.
    ///
    /// # Errors
    /// `EBUSY` if the process is governed already, `EDQUOT` if its user has too many processes or groups,
    /// `EAGAIN` if an ancestor cannot be examined; as making a group.
    pub(in crate::socket) fn begin(
        &mut self,
        request: JobRequest,
        verdict: &Verdict,
        users: &Group,
        number: u64,
    ) -> Result<String, Refused> {
        let JobRequest {
            peer, group, name, ..
        } = request;
        let key = key(&peer);
        if self.is_known(&peer) {
            return Err(refused(Errno::EBUSY));
        }
        if !self.live.has_room_for(key, peer.uid) {
            return Err(refused(Errno::EDQUOT));
        }
        let origin = self.origin(key, &peer.stat);
        let above = self.binding(origin.as_ref(), verdict);
        let job = Job {
            pid: peer.pid,
            start_time: peer.stat.start_time,
            wish: group,
            is_inherited: above.is_some() && origin.is_some_and(|origin| origin.is_inherited),
            has_ended: false,
        };
        let who = Credentials::of(&peer);
        let facts = GroupFacts {
            who: &who,
            above,
            verdict,
            wish: job.wish.as_deref(),
            names_job: false,
        };
        let new = NewJob {
            name: name.as_deref(),
            job: &job,
            users,
        };
        // Watched before the group is made, so that the end of the process is always noticed.
        self.live
            .add(number, key, peer.uid, peer.pidfd)
            .map_err(refused)?;
        match make_job_group(&self.tree, &facts, &new) {
            Ok(made) => {
                let path = self.tree.path(Some(made));
                if self.may_debug_of(who.uid) {
                    debug!("{} of user {} starts job {path:?}", job.pid, who.uid);
                }
                Ok(path)
            }
            Err(error) => {
                if self.may_log_of(who.uid) {
                    warn!(
                        "{} of user {} gets no group for its job: {error}",
                        job.pid, who.uid
                    );
                }
                Err(refused_by_tree(&error))
            }
        }
    }

    /// Returns the group that a process asked for, for rules: a job's group stands for the one that was asked
    /// for when the job was started.
    pub(in crate::socket) fn original_wish(&self, wish: GroupName) -> Option<String> {
        let wish = wish.as_str()?;
        self.tree.job_wish(wish).unwrap_or_else(|| Some(wish.to_owned()))
    }
}
