//! Names of Kubernetes containers by their ids. A cgroup's path has only the id; the kubelet tells the name:
//! as soon as it has started a container, it makes a link in /var/log/containers, with the id in its name, to
//! `/var/log/pods/NAMESPACE_POD_UID/CONTAINER/N.log`. That holds for every runtime, and needs neither the API
//! server nor the runtime's socket. Only root can write there.

mod search;

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use gcgroupfs_model::rules::PodCgroup;
use nix::errno::Errno;
use search::{Container, Look, Search, look};

/// Where the kubelet makes the links.
const LINKS: &str = "/var/log/containers";

/// Time for which a container may be without a link: its first process may be faster than the kubelet. Less
/// than the 5 s for which a hook waits before it lets everything through.
const PATIENCE: Duration = Duration::from_secs(3);

/// Longest wait for the directory of links. While it hangs, containers are without a link.
const SEARCH_PATIENCE: Duration = Duration::from_millis(250);

/// Containers that are remembered.
const MAX_CONTAINERS: usize = 4096;

/// Names of containers.
#[derive(Debug)]
pub struct Containers {
    search: Search,
    /// Names, or since when there has been none, by the container's id.
    known: HashMap<String, Result<String, Instant>>,
}

impl Default for Containers {
    fn default() -> Self {
        Self::new(LINKS.as_ref(), look)
    }
}

impl Containers {
    fn new(links: &Path, look: Look) -> Self {
        Self {
            search: Search::new(links, look),
            known: HashMap::new(),
        }
    }

    /// Returns the name of the container of a process with these cgroups; `None` if it is in none, or in one
    /// of which the kubelet has not told the name within 3 s. Waits at most 0.25 s.
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
        // A search that took longer, of this container or of another one.
        self.receive(Duration::ZERO);
        if self.name_of(id).is_none() {
            let (id, pod) = (id.to_owned(), pod.uid.clone());
            // Waits once for a directory that hangs, and not for each container.
            if self.search.start(Container { id, pod }) {
                self.receive(SEARCH_PATIENCE);
            }
        }
        if let Some(name) = self.name_of(id) {
            return Ok(Some(name));
        }
        self.make_room();
        let since = self.known.entry(id.to_owned());
        match since.or_insert_with(|| Err(Instant::now())) {
            Err(since) if since.elapsed() < PATIENCE => Err(Errno::EAGAIN),
            _ => Ok(None),
        }
    }

    fn name_of(&self, id: &str) -> Option<String> {
        self.known.get(id)?.as_ref().ok().cloned()
    }

    /// Keeps the name that the search has found, if it ends in time.
    fn receive(&mut self, patience: Duration) {
        if let Some((id, name)) = self.search.wait(patience) {
            self.make_room();
            self.known.insert(id, Ok(name));
        }
    }

    /// Forgets names if there are too many; containers without a name keep their time as long as possible.
    fn make_room(&mut self) {
        if self.known.len() >= MAX_CONTAINERS {
            self.known.retain(|_, name| name.is_err());
        }
        if self.known.len() >= MAX_CONTAINERS {
            self.known.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::thread;

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
        let mut containers = Containers::new(links, look);
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
        let mut containers = Containers::new(directory.path(), look);
        assert_eq!(containers.name(&cgroups(UID, &id)), Err(Errno::EAGAIN));
        let long_ago = Instant::now().checked_sub(PATIENCE).unwrap();
        containers.known.insert(id.clone(), Err(long_ago));
        assert_eq!(containers.name(&cgroups(UID, &id)), Ok(None));
        assert_eq!(containers.name(&["/user.slice".to_owned()]), Ok(None));
        assert_eq!(containers.name(&cgroups(UID, "init.scope")), Ok(None));
    }

    /// Looks for a link once the directory has a file named `answers`. Until then it hangs, as the directory
    /// itself may. Counts the searches in files.
    fn look_when_it_answers(links: &Path, container: &Container) -> Option<String> {
        fs::write(links.join(&container.id), "").unwrap();
        while links.exists() && !links.join("answers").exists() {
            thread::sleep(Duration::from_millis(1));
        }
        look(links, container)
    }

    #[test]
    fn containers_are_unknown_while_their_directory_hangs() {
        let directory = tempfile::tempdir().unwrap();
        let links = directory.path();
        let (first, second) = ("a".repeat(64), "b".repeat(64));
        let mut containers = Containers::new(links, look_when_it_answers);
        for (name, id) in [("one", &first), ("two", &second)] {
            link(links, &format!("p_team_{name}-{id}.log"), UID, name);
            assert_eq!(containers.name(&cgroups(UID, id)), Err(Errno::EAGAIN));
        }
        let long_ago = Instant::now().checked_sub(PATIENCE).unwrap();
        containers.known.insert(first.clone(), Err(long_ago));
        assert_eq!(containers.name(&cgroups(UID, &first)), Ok(None));
        assert!(!links.join(&second).exists(), "one search runs at a time");
        // Others do not wait.
        assert_eq!(containers.name(&["/user.slice".to_owned()]), Ok(None));

        fs::write(links.join("answers"), "").unwrap();
        for (name, id) in [("two", &second), ("one", &first)] {
            let end = Instant::now() + Duration::from_secs(60);
            while containers.name(&cgroups(UID, id)) != Ok(Some(name.to_owned())) {
                assert!(Instant::now() < end, "{name} is found");
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
