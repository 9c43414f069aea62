//! Limits of jobs. `gcgroupfs run` gives each program its job's limits, so that they hold without a daemon;
//! with a daemon those of the job's group hold, and the process has none of its own.

use gcgroup_abi::NO_LIMIT;
use gcgroup_abi::message::Hello;

use super::settings::{MEMORY_LIMIT, MEMORY_SWAP_MAX, Setting, Value};
use super::{GroupId, State, Tree};

impl Tree {
    /// Returns a registration in a group without the limits that are those of the job.
    pub fn without_jobs_limits(&self, hello: &Hello, group: Option<GroupId>) -> Hello {
        let (state, mut hello) = (self.state.lock(), *hello);
        let is_set = |setting| hello.has_jobs_limits != 0 && state.jobs_bound(group, setting, None).is_some();
        let (has_limit, has_swap_max) = (is_set(MEMORY_LIMIT), is_set(MEMORY_SWAP_MAX));
        if has_limit {
            hello.memory_limit = NO_LIMIT;
        }
        if has_swap_max && hello.memory_swap_max != 0 {
            hello.memory_swap_max = NO_LIMIT;
        }
        hello
    }
}

impl State {
    /// Returns the strictest value of the jobs that a group is in, as a whole or on a device; `None` if they
    /// have none, or if the setting is not one that bounds jobs.
    pub(super) fn jobs_bound(
        &self,
        group: Option<GroupId>,
        setting: &Setting,
        uuid: Option<&str>,
    ) -> Option<Value> {
        let groups = self.chain(group).into_iter().filter(|_| setting.bounds_jobs);
        let jobs = groups
            .filter_map(|id| self.groups.get(&id))
            .filter(|group| group.is_job);
        let bounds = jobs.filter_map(|group| group.settings.own(setting, uuid));
        bounds.reduce(|one, other| setting.tighter.stricter(one, other))
    }
}
