//! Why a process is not governed, from what can be seen of it from outside.

use crate::text::word;
use crate::tree::{Explanation, Line, Section};

/// Name of the preloaded library, and of the one that it loads.
pub const PRELOAD: &str = "libgcgroup.so";
pub const HOOK: &str = "libgcgroup_hook.so";

/// Beginning of the file names of the driver's library.
const DRIVER: &str = "libcuda.so";

/// Beginning of the paths of the driver's devices.
const DEVICES: &str = "/dev/nvidia";

/// How a process with the preloaded library may evade it.
const PAST: &str =
    "it looks driver functions up past the library (RTLD_DEEPBIND, dlmopen, another preloaded dlsym)";

/// Kind of a program's file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Program {
    #[default]
    Unknown,
    /// Without a dynamic loader.
    Static,
    /// For another machine than the libraries, such as 32 bits.
    Foreign,
    Dynamic,
}

/// Facts about a process that is not governed, seen from outside.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    pub pid: u32,
    pub comm: String,
    pub uid: u32,
    pub program: Program,
    /// Whether root asks.
    pub is_seen_by_root: bool,
    /// Paths of its mapped files and open devices; `None` if they cannot be read.
    pub files: Option<Vec<String>>,
    /// Libraries named ours in `LD_PRELOAD` of its environment or in /etc/ld.so.preload.
    pub named: Vec<String>,
    /// Those of our libraries that are missing or that its user may not read.
    pub unreadable: Vec<String>,
    /// Whether the loader ignores `LD_PRELOAD` for it: setuid, setgid or capabilities.
    pub is_privileged: bool,
    /// The nearest ancestor with our library in `LD_PRELOAD`: pid and name.
    pub ancestor: Option<(u32, String)>,
    /// Socket at which its hook registers.
    pub socket: String,
    /// Socket of the daemon that was asked.
    pub daemon_socket: String,
    pub daemon: Daemon,
}

/// The daemon, seen from the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Daemon {
    #[default]
    Absent,
    /// Started after the process.
    Later,
    Present,
}

/// A reason and what can be done about it.
type Reason = (String, &'static str);

/// Explains why the process is not governed.
pub fn diagnose(observed: &Observed) -> Explanation {
    let (reason, remedy) = reason(observed);
    let mut why = vec![reason];
    let is_loaded = observed.has(PRELOAD);
    if observed.files.is_some() && !is_loaded && !observed.uses_driver() {
        why.push("it has not loaded the driver: it does not use a GPU so far".to_owned());
    }
    if observed.daemon == Daemon::Absent {
        let socket = word(&observed.daemon_socket);
        why.push(format!("no daemon answers at {socket}"));
    }
    let mut todo = vec![remedy.to_owned()];
    if observed.daemon == Daemon::Absent {
        todo.push("start the daemon: systemctl start gcgroupfs, or gcgroupfs mount".to_owned());
    }
    let section = |title: &str, texts: Vec<String>| Section {
        title: title.to_owned(),
        lines: texts.into_iter().map(|text| Line { age: None, text }).collect(),
    };
    let (pid, comm, uid) = (observed.pid, word(&observed.comm), observed.uid);
    Explanation {
        title: format!("process {pid} ({comm}) of uid {uid}, not governed"),
        sections: vec![section("Why", why), section("What can be done", todo)],
    }
}

impl Observed {
    fn has(&self, library: &str) -> bool {
        let mut files = self.files.iter().flatten();
        files.any(|path| path.rsplit('/').next() == Some(library))
    }

    fn uses_driver(&self) -> bool {
        let mut files = self.files.iter().flatten();
        files.any(|path| is_driver(path) || path.starts_with(DEVICES))
    }

    fn has_driver(&self) -> bool {
        self.files.iter().flatten().any(|path| is_driver(path))
    }
}

fn is_driver(path: &str) -> bool {
    path.rsplit('/')
        .next()
        .is_some_and(|name| name.starts_with(DRIVER))
}

fn reason(observed: &Observed) -> Reason {
    if observed.program == Program::Static {
        let why = "it is a static program, into which nothing can be preloaded".to_owned();
        return (why, "link it dynamically (CUDA programs: nvcc --cudart=shared)");
    }
    if observed.program == Program::Foreign {
        let why = "it is a program for another machine, such as 32 bits".to_owned();
        return (
            why,
            "only programs for this machine's own architecture can be governed",
        );
    }
    if observed.files.is_none() {
        let why = "it cannot be examined: only its user and root may".to_owned();
        let todo = match observed.is_seen_by_root {
            true => "examine it outside of this container: here root has no right to (CAP_SYS_PTRACE)",
            false => "repeat the command as root",
        };
        return (why, todo);
    }
    if observed.has(HOOK) {
        return hooked(observed);
    }
    if observed.has(PRELOAD) {
        return preloaded(observed);
    }
    not_preloaded(observed)
}

/// The hook is loaded and has not registered.
fn hooked(observed: &Observed) -> Reason {
    if observed.socket != observed.daemon_socket {
        let why = format!(
            "it registers at {} (GCGROUP_SOCKET of its environment), not at {}",
            word(&observed.socket),
            word(&observed.daemon_socket)
        );
        return (why, "ask that daemon: gcgroupfs --socket PATH explain PID");
    }
    match observed.daemon {
        Daemon::Absent => (
            "the daemon is absent; the process tries again to register".to_owned(),
            "the process registers by itself once the daemon runs",
        ),
        Daemon::Later => (
            "the daemon was started after the process, which has not registered since".to_owned(),
            "wait some seconds for its next attempt; then look for its pid in the daemon's log",
        ),
        Daemon::Present => (
            format!("it has not called cuInit yet, the daemon has refused it, or {PAST}"),
            "look for its pid in the daemon's log: a hook of another version, or too many processes",
        ),
    }
}

/// The preloaded library is there and has not loaded the hook.
fn preloaded(observed: &Observed) -> Reason {
    if let Some(path) = observed.unreadable.first() {
        let why = format!("the hook is missing or it may not read it: {}", word(path));
        return (why, "install gcgroupfs again, or chmod a+r the library");
    }
    if observed.has_driver() {
        return (
            format!(
                "it has loaded the driver but not the hook: it has used no driver function yet, {PAST}, or its C \
                 library is too old for the hook"
            ),
            "if it uses the GPU already: use glibc as new as the one that gcgroupfs was built with",
        );
    }
    if observed.uses_driver() {
        return (
            "it uses the GPU through another library than libcuda.so.1".to_owned(),
            "let it use the driver's libcuda.so.1",
        );
    }
    (
        "it has not used a GPU yet: it is governed from its first use (cuInit)".to_owned(),
        "nothing: this is normal for programs that do not use CUDA",
    )
}

fn not_preloaded(observed: &Observed) -> Reason {
    if let Some(path) = observed.unreadable.first() {
        let why = format!("the library is missing or it may not read it: {}", word(path));
        return (why, "install gcgroupfs again, or chmod a+r the library");
    }
    if observed.is_privileged {
        let why = "it runs with other privileges than its user's (setuid, setgid or file capabilities), so the \
                   loader ignores LD_PRELOAD";
        return (
            why.to_owned(),
            "gc-everywhere uses /etc/ld.so.preload, which holds for it too",
        );
    }
    if let Some(path) = observed.named.first() {
        let why = format!(
            "{} is named for it but not loaded: it was started before, or its C library is too old",
            word(path)
        );
        return (why, "start it again");
    }
    match &observed.ancestor {
        Some((pid, comm)) => (
            format!(
                "LD_PRELOAD was removed between process {pid} ({}), which has it, and this one: by sudo, env -i \
                 or a script",
                word(comm)
            ),
            "gcgroupfs run behind it (sudo gcgroupfs run -- COMMAND), or gc-everywhere on",
        ),
        None => (
            "the library was not preloaded: neither gcgroupfs run nor /etc/ld.so.preload".to_owned(),
            "start it with gcgroupfs run, or gc-everywhere on",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(files: &[&str]) -> Observed {
        Observed {
            pid: 7,
            comm: "a b".to_owned(),
            program: Program::Dynamic,
            files: Some(files.iter().map(|&path| path.to_owned()).collect()),
            socket: "/run/s".to_owned(),
            daemon_socket: "/run/s".to_owned(),
            daemon: Daemon::Present,
            ..Observed::default()
        }
    }

    #[track_caller]
    fn check(observed: &Observed, expected: &str) {
        let explanation = diagnose(observed);
        assert_eq!(explanation.title, "process 7 (a\\040b) of uid 0, not governed");
        let text = &explanation.sections[0].lines[0].text;
        assert!(text.contains(expected), "{text}");
        assert!(
            explanation
                .sections
                .iter()
                .all(|section| !section.lines.is_empty())
        );
    }

    #[test]
    fn reason_follows_from_what_is_loaded() {
        let (preload, hook) = ("/opt/lib/libgcgroup.so", "/opt/lib/libgcgroup_hook.so");
        let driver = "/usr/lib/libcuda.so.1";
        check(&seen(&[preload, hook, driver]), "has not called cuInit");
        check(&seen(&[preload, driver]), "RTLD_DEEPBIND");
        check(
            &seen(&[preload, "/dev/nvidia0"]),
            "another library than libcuda.so.1",
        );
        check(&seen(&[preload]), "has not used a GPU yet");
        check(&seen(&[driver]), "neither gcgroupfs run nor");
        let of = |change: fn(&mut Observed), files: &[&str]| {
            let mut observed = seen(files);
            change(&mut observed);
            observed
        };
        check(&of(|it| it.program = Program::Static, &[]), "static program");
        check(&of(|it| it.program = Program::Foreign, &[]), "32 bits");
        check(&of(|it| it.files = None, &[]), "only its user and root");
        for (is_seen_by_root, todo) in [(false, "repeat the command as root"), (true, "container")] {
            let mut observed = seen(&[]);
            (observed.files, observed.is_seen_by_root) = (None, is_seen_by_root);
            let explanation = diagnose(&observed);
            let text = &explanation.sections[1].lines[0].text;
            assert!(text.contains(todo), "{text}");
        }
        check(&of(|it| it.is_privileged = true, &[driver]), "ignores LD_PRELOAD");
        check(
            &of(|it| it.named = vec!["/l".into()], &[driver]),
            "started before",
        );
        check(
            &of(|it| it.ancestor = Some((3, "sh".into())), &[driver]),
            "removed between process 3 (sh)",
        );
        let unreadable: fn(&mut Observed) = |it| it.unreadable = vec!["/secret".into()];
        check(
            &of(unreadable, &[preload, driver]),
            "the hook is missing or it may not read it: /secret",
        );
        check(&of(unreadable, &[driver]), "the library is missing");
        check(
            &of(|it| it.daemon = Daemon::Absent, &[hook]),
            "the daemon is absent",
        );
        check(
            &of(|it| it.daemon = Daemon::Later, &[hook]),
            "was started after the process",
        );
        check(
            &of(|it| it.socket = "/other".into(), &[hook]),
            "registers at /other",
        );
    }
}
