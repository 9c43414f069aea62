//! Kubernetes pods and containers in the paths of kernel cgroups. The kubelet names the cgroup of a pod, and
//! the container runtime that of a container directly below. What a container makes below its own is not
//! heeded.

/// Length of a container's id, digits.
const ID_LENGTH: usize = 64;

/// Pod of a process, as its cgroup's path names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCgroup<'a> {
    pub uid: String,
    /// Id of the container, 64 hexadecimal digits; `None` for a process of the pod that is in none.
    pub container: Option<&'a str>,
}

impl<'a> PodCgroup<'a> {
    /// Returns the outermost pod in the first of the paths that names one.
    pub fn find(paths: &'a [String]) -> Option<Self> {
        paths.iter().find_map(|path| {
            let mut names = path.split('/');
            let uid = names.find_map(pod_uid)?;
            Some(Self {
                uid,
                container: names.next().and_then(container_id),
            })
        })
    }
}

/// Returns the UID in the name of a pod's cgroup: `podUID`, or `kubepods-burstable-podUID.slice` with
/// underscores in the UID. The slice of a kubelet with a cgroup root has that root's name before.
fn pod_uid(name: &str) -> Option<String> {
    let last = match name.strip_suffix(".slice") {
        Some(name) => {
            let (above, last) = name.rsplit_once('-')?;
            above.split('-').any(|part| part == "kubepods").then_some(last)?
        }
        None => name,
    };
    let uid = last.strip_prefix("pod")?;
    let is_uid = (32..=36).contains(&uid.len())
        && uid
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || b"-_".contains(&byte));
    is_uid.then(|| uid.replace('_', "-"))
}

/// Returns the id in the name of a container's cgroup: alone, or after the runtime's name.
fn container_id(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let id = name.rsplit_once('-').map_or(name, |(_, id)| id);
    let is_id = id.len() == ID_LENGTH && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_runtimes_name_pod_and_container() {
        let id = "0123456789abcdef".repeat(4);
        let text = include_str!("../../../../tests/data/kubernetes-cgroups.txt").replace('@', &id);
        let lines = text.lines().filter(|line| line.starts_with('/'));
        for line in lines {
            let fields: Vec<&str> = line.split(' ').collect();
            let &[path, uid, container] = &fields[..] else {
                panic!("{line}");
            };
            let paths = ["/".to_owned(), path.to_owned()];
            let pod = PodCgroup::find(&paths);
            let expected = (uid != "-").then(|| PodCgroup {
                uid: uid.to_owned(),
                container: Some(container).filter(|id| *id != "-"),
            });
            assert_eq!(pod, expected, "{path}");
        }
    }
}
