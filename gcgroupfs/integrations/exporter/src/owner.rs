//! Whose work a process is: its user, and the container, pod and batch job in its cgroup's path.

use std::fs;

use gcgroup_client::cgroup;
use serde::Serialize;

use crate::pods::Pods;

/// Container, pod and job of a process, as its cgroup's path names them; empty: in none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Owner {
    /// Name of the container, or the first 12 digits of its id if that is not known.
    pub(crate) container: String,
    /// Namespace of the Kubernetes pod, if it is known.
    pub(crate) namespace: String,
    /// Name of the Kubernetes pod, or its UID if that is not known.
    pub(crate) pod: String,
    /// Number of the Slurm job.
    pub(crate) job: String,
}

impl Owner {
    /// Returns the owner of a process; an empty one if the process has ended or is hidden.
    pub(crate) fn of(pid: u32) -> Self {
        fs::read_to_string(format!("/proc/{pid}/cgroup"))
            .map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    /// Replaces the pod's UID and the container's id by names, as far as they are known.
    pub(crate) fn name(&mut self, pods: &Pods) {
        if let Some(pod) = pods.pod(&self.pod) {
            if let Some(name) = pod.container(&self.container) {
                self.container = name.to_owned();
            }
            self.namespace.clone_from(&pod.namespace);
            self.pod.clone_from(&pod.name);
        }
    }

    /// Parses /proc/PID/cgroup.
    fn parse(text: &str) -> Self {
        let mut owner = Self::default();
        for name in cgroup::names(text) {
            if let Some(id) = cgroup::container_id(name) {
                owner.container = id.get(..12).unwrap_or_default().to_owned();
            } else if let Some(uid) = cgroup::pod_uid(name) {
                owner.pod = uid;
            } else if let Some(job) = name
                .strip_prefix("job_")
                .filter(|job| is_all(job, |c| c.is_ascii_digit()))
            {
                owner.job = job.to_owned();
            }
        }
        owner
    }
}

fn is_all(text: &str, test: impl FnMut(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(test)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn owner(container: &str, pod: &str, job: &str) -> Owner {
        Owner {
            container: container.to_owned(),
            pod: pod.to_owned(),
            job: job.to_owned(),
            ..Owner::default()
        }
    }

    #[test]
    fn cgroup_paths_of_runtimes_are_recognised() {
        let uid = "8d3f1c2a-0b1c-4d5e-8f90-123456789abc";
        let low = uid.replace('-', "_");
        for (path, expected) in [
            (
                format!("/system.slice/docker-{ID}.scope"),
                owner("0123456789ab", "", ""),
            ),
            (format!("/docker/{ID}"), owner("0123456789ab", "", "")),
            (
                format!("/machine.slice/libpod-{ID}.scope/container"),
                owner("0123456789ab", "", ""),
            ),
            (
                format!(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{low}.slice/cri-containerd-{ID}.scope"
                ),
                owner("0123456789ab", uid, ""),
            ),
            (
                format!("/kubepods/besteffort/pod{uid}/{ID}"),
                owner("0123456789ab", uid, ""),
            ),
            (
                "/slurm/uid_1000/job_4711/step_0".to_owned(),
                owner("", "", "4711"),
            ),
            (
                "/system.slice/slurmstepd.scope/job_12/step_0/user/task_0".to_owned(),
                owner("", "", "12"),
            ),
            (
                "/user.slice/user-1000.slice/session-2.scope".to_owned(),
                Owner::default(),
            ),
            ("/podium/job_x/job_".to_owned(), Owner::default()),
        ] {
            assert_eq!(Owner::parse(&format!("0::{path}\n")), expected, "{path}");
        }
        assert_eq!(
            Owner::parse(&format!("4:devices:/docker/{ID}\n0::/\n")),
            owner("0123456789ab", "", "")
        );
        assert_eq!(Owner::parse("nonsense"), Owner::default());
    }
}
