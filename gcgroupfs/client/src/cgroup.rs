//! Names in the paths of kernel cgroups.

/// Returns the parts of all paths in a text of /proc/PID/cgroup.
pub fn names(text: &str) -> impl Iterator<Item = &str> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.flat_map(|path| path.split('/')).map(|name| {
        name.strip_suffix(".scope")
            .or(name.strip_suffix(".slice"))
            .unwrap_or(name)
    })
}

/// Returns a container's id: 64 hexadecimal digits, after the runtime's name or alone.
pub fn container_id(name: &str) -> Option<&str> {
    let id = name.rsplit_once('-').map_or(name, |(_, id)| id);
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(id)
}

/// Returns the UID in the name of a Kubernetes pod's cgroup: `podUID`, or `kubepods-burstable-podUID` with
/// underscores, which a kubelet with a cgroup root writes after that root's name.
pub fn pod_uid(name: &str) -> Option<String> {
    let name = name
        .rsplit_once('-')
        .filter(|(above, _)| above.split('-').any(|part| part == "kubepods"))
        .map_or(name, |(_, last)| last);
    let uid = name.strip_prefix("pod")?;
    let is_uid = (32..=36).contains(&uid.len())
        && uid
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || b"-_".contains(&byte));
    is_uid.then(|| uid.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_runtimes_name_pods() {
        let id = "0123456789abcdef".repeat(4);
        let text = include_str!("../../../tests/data/kubernetes-cgroups.txt").replace('@', &id);
        for line in text.lines().filter(|line| line.starts_with('/')) {
            let mut fields = line.split(' ');
            let (path, uid) = (fields.next().unwrap(), fields.next().unwrap());
            let text = format!("4:memory:{path}\n0::/\n");
            let found = names(&text).find_map(pod_uid);
            assert_eq!(found.as_deref(), Some(uid).filter(|uid| *uid != "-"), "{path}");
            let is_in_one = line.contains(&id);
            assert_eq!(
                names(&text).find_map(container_id),
                is_in_one.then_some(id.as_str()),
                "{path}"
            );
        }
    }
}
