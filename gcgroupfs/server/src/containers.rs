//! Names of Kubernetes containers by their ids. A cgroup's path has only the id; the kubelet tells the name:
//! as soon as it has started a container, it makes a link in /var/log/containers, with the id in its name, to
//! `/var/log/pods/NAMESPACE_POD_UID/CONTAINER/N.log`. That holds for every runtime, and needs neither the API
//! server nor the runtime's socket. Only root can write there.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gcgroupfs_model::rules::PodCgroup;
use nix::errno::Errno;

/// Where the kubelet makes the links.
const LINKS: &str = "/var/log/containers";

/// Time for which a container may be without a link: its first process may be faster than the kubelet. Less
/// than the 5 s for which a hook waits before it lets everything through.
const PATIENCE: Duration = Duration::from_secs(3);

/// Fewest digits of the id in a link's name, which is cut to 255 bytes.
const MIN_DIGITS: usize = 12;

/// Containers that are remembered.
const MAX_CONTAINERS: usize = 4096;

/// Names of containers.
#[derive(Debug)]
pub struct Containers {
    links: PathBuf,
    /// Names, or since when there has been none, by the container's id.
    known: HashMap<String, Result<String, Instant>>,
}

impl Default for Containers {
    fn default() -> Self {
        Self::new(LINKS.as_ref())
    }
}

impl Containers {
    fn new(links: &Path) -> Self {
        Self {
            links: links.to_owned(),
            known: HashMap::new(),
        }
    }

    /// Returns the name of the container of a process with these cgroups; `None` if it is in none, or in one
    /// of which the kubelet has not told the name within 3 s.
    ///
    /// # Errors
    /// `EAGAIN`: not told yet.
    pub fn name(&mut self, cgroups: &[String]) -> nix::Result<Option<String>> {
        let Some(pod) = PodCgroup::find(cgroups) else {
            return Ok(None);
        };
        let Some(id) = pod.container else {
            return Ok(None);
        };
        if let Some(Ok(name)) = self.known.get(id) {
            return Ok(Some(name.clone()));
        }
        if self.known.len() >= MAX_CONTAINERS {
            // What is waited for keeps its time.
            self.known.retain(|_, name| name.is_err());
        }
        if self.known.len() >= MAX_CONTAINERS {
            self.known.clear();
        }
        if let Some(name) = find(&self.links, &pod.uid, id) {
            self.known.insert(id.to_owned(), Ok(name.clone()));
            return Ok(Some(name));
        }
        let since = self.known.entry(id.to_owned());
        match since.or_insert_with(|| Err(Instant::now())) {
            Err(since) if since.elapsed() < PATIENCE => Err(Errno::EAGAIN),
            _ => Ok(None),
        }
    }
}

/// Looks for the link of a container. The pod is compared as well: users choose the names of pods, which
/// begin those of the links.
fn find(links: &Path, uid: &str, id: &str) -> Option<String> {
    let entries = fs::read_dir(links).ok()?;
    entries.flatten().find_map(|entry| {
        let name = entry.file_name();
        let (_, digits) = name.to_str()?.strip_suffix(".log")?.rsplit_once('-')?;
        if digits.len() < MIN_DIGITS || !id.starts_with(digits) {
            return None;
        }
        let log = fs::read_link(entry.path()).ok()?;
        let of_container = log.parent()?;
        let of_pod = of_container.parent()?.file_name()?.to_str()?;
        let (_, of_uid) = of_pod.rsplit_once('_')?;
        (of_uid == uid).then_some(of_container.file_name()?.to_str()?.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const UID: &str = "8d3f1c2a-0b1c-4d5e-8f90-123456789abc";
    const OTHER: &str = "00000000-0000-4000-8000-000000000000";

    fn cgroups(uid: &str, id: &str) -> Vec<String> {
        vec!["/".to_owned(), format!("/kubepods/besteffort/pod{uid}/{id}")]
    }

    fn link(links: &Path, name: &str, uid: &str, container: &str) {
        let log = format!("/var/log/pods/team_p_{uid}/{container}/0.log");
        symlink(log, links.join(name)).unwrap();
    }

    #[test]
    fn name_is_that_of_the_link_in_the_same_pod() {
        let directory = tempfile::tempdir().unwrap();
        let (links, id) = (directory.path(), "0123456789abcdef".repeat(4));
        let mut containers = Containers::new(links);
        // A pod can have any name, also one that ends as the link of another's container.
        link(links, &format!("x-{id}.log"), OTHER, "forged");
        link(links, "p_team_short-0123.log", UID, "short");
        assert_eq!(containers.name(&cgroups(UID, &id)), Err(Errno::EAGAIN));
        link(links, &format!("p_team_main-{}.log", &id[..20]), UID, "main");
        assert_eq!(containers.name(&cgroups(UID, &id)), Ok(Some("main".to_owned())));
        fs::remove_dir_all(links).unwrap();
        let again = containers.name(&cgroups(UID, &id));
        assert_eq!(again, Ok(Some("main".to_owned())), "it is remembered");
    }

    #[test]
    fn name_of_a_container_without_a_link_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let id = "f".repeat(64);
        let mut containers = Containers::new(directory.path());
        assert_eq!(containers.name(&cgroups(UID, &id)), Err(Errno::EAGAIN));
        let long_ago = Instant::now().checked_sub(PATIENCE).unwrap();
        containers.known.insert(id.clone(), Err(long_ago));
        assert_eq!(containers.name(&cgroups(UID, &id)), Ok(None));
        assert_eq!(containers.name(&["/user.slice".to_owned()]), Ok(None));
        assert_eq!(containers.name(&cgroups(UID, "init.scope")), Ok(None));
    }
}
