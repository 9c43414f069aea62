//! Whose work a process is: its user, and the container, pod and batch job in its cgroup's path.

use std::collections::BTreeMap;
use std::fs;

use nix::unistd::User;
use serde::Serialize;

/// Maximum number of cached user names.
const MAX_USERS: usize = 1024;

/// Container, pod and job of a process, as its cgroup's path names them; empty: in none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Owner {
    /// First 12 digits of the container's id.
    pub(crate) container: String,
    /// UID of the Kubernetes pod.
    pub(crate) pod: String,
    /// Number of the Slurm job.
    pub(crate) job: String,
}

impl Owner {
    /// Returns the owner of a process; an empty one if the process has ended or is hidden.
    pub(crate) fn of(pid: &str) -> Self {
        fs::read_to_string(format!("/proc/{pid}/cgroup"))
            .map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    /// Parses /proc/PID/cgroup.
    fn parse(text: &str) -> Self {
        let mut owner = Self::default();
        let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        for name in paths.flat_map(|path| path.split('/')) {
            let name = name
                .strip_suffix(".scope")
                .or(name.strip_suffix(".slice"))
                .unwrap_or(name);
            if let Some(id) = container(name) {
                owner.container = id;
            } else if let Some(uid) = pod(name) {
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

/// Returns the first 12 digits of a container's id: 64 hexadecimal digits, after the runtime's name or alone.
fn container(name: &str) -> Option<String> {
    let id = name.rsplit_once('-').map_or(name, |(_, id)| id);
    let is_id = id.len() == 64 && is_all(id, |c| c.is_ascii_hexdigit());
    is_id.then(|| id.get(..12).unwrap_or_default().to_owned())
}

/// Returns the UID in the name of a pod's cgroup: `podUID`, or `kubepods-burstable-podUID` with underscores.
fn pod(name: &str) -> Option<String> {
    let name = name
        .rsplit_once('-')
        .filter(|_| name.starts_with("kubepods-"))
        .map_or(name, |(_, last)| last);
    let uid = name.strip_prefix("pod")?;
    let is_uid =
        uid.len() >= 32 && uid.len() <= 36 && is_all(uid, |c| c.is_ascii_hexdigit() || "-_".contains(c));
    is_uid.then(|| uid.replace('_', "-"))
}

fn is_all(text: &str, test: impl FnMut(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(test)
}

/// Names of users. A look-up may ask a directory service, so names are cached.
#[derive(Debug, Default)]
pub(crate) struct Users(BTreeMap<u32, String>);

impl Users {
    /// Returns the user's name, or the uid if it has none.
    pub(crate) fn name(&mut self, uid: u32) -> String {
        if self.0.len() >= MAX_USERS {
            self.0.clear();
        }
        let look_up = || match User::from_uid(uid.into()) {
            Ok(Some(user)) => user.name,
            _ => uid.to_string(),
        };
        self.0.entry(uid).or_insert_with(look_up).clone()
    }
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
