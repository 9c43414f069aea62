//! The table of checks, and what each looks at.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gcgroupfs_model::text::word;
use gcgroupfs_server::devices;

use super::{Check, Daemon, Finding, Machine, PATIENCE};
use crate::cli::{cdi, paths, run};
use crate::config;

/// All checks, in the order in which one depends on another; a new check is a row here.
pub(super) const CHECKS: &[Check] = &[
    check("kernel", kernel),
    check("fuse", fuse),
    check("driver", driver),
    check("library", library),
    check("preload", preload),
    check("rules", rules),
    check("daemon", daemon),
    check("mount", mount),
    check("settings", settings),
    check("unmanaged", unmanaged),
    check("containers", containers),
];

const fn check(name: &'static str, look: fn(&Machine) -> Vec<Finding>) -> Check {
    Check { name, look }
}

/// The oldest kernel with pidfd_open(2) and what the daemon needs besides, as README says.
const OLDEST_KERNEL: (u32, u32) = (5, 4);

fn kernel(machine: &Machine) -> Vec<Finding> {
    let release = fs::read_to_string(machine.path("/proc/sys/kernel/osrelease")).unwrap_or_default();
    let release = release.trim();
    let (major, minor) = OLDEST_KERNEL;
    let remedy = format!("use Linux {major}.{minor} or newer");
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    vec![match (numbers.next(), numbers.next()) {
        (Some(found), Some(minor)) if (found, minor) >= OLDEST_KERNEL => {
            Finding::ok(format!("Linux {release}"))
        }
        (Some(_), Some(_)) => Finding::fail(format!("Linux {release} is too old"), remedy),
        _ => Finding::warn("the version of the kernel is unknown", remedy),
    }]
}

fn fuse(machine: &Machine) -> Vec<Finding> {
    let device = machine.path("/dev/fuse");
    let opened = OpenOptions::new().read(true).write(true).open(&device);
    let mut found = vec![match opened {
        Ok(_) => Finding::ok("/dev/fuse opens"),
        Err(error) if error.kind() == ErrorKind::NotFound => Finding::fail(
            "/dev/fuse is missing",
            "modprobe fuse; in a container: start it with --device /dev/fuse",
        ),
        Err(error) => Finding::fail(format!("/dev/fuse: {error}"), "chmod 666 /dev/fuse"),
    }];
    if !machine.is_root && program("fusermount3").is_none() {
        found.push(Finding::fail(
            "fusermount3 is missing, without which only root can mount",
            "install the package fuse3",
        ));
    }
    found
}

fn driver(_: &Machine) -> Vec<Finding> {
    match devices::summary() {
        Err(error) => vec![Finding::fail(
            format!("NVML: {error}"),
            "install NVIDIA's driver; in a container: start it with its GPU devices and libraries",
        )],
        Ok(summary) if summary.names.is_empty() => vec![Finding::fail(
            format!("driver {}: no GPU", summary.driver),
            "check lspci and dmesg; in a container: start it with its GPU devices",
        )],
        Ok(summary) => vec![Finding::ok(format!(
            "driver {}: {}",
            summary.driver,
            summary.names.join(", ")
        ))],
    }
}

/// The installed libraries, and whether the loader accepts them in another program.
fn library(_: &Machine) -> Vec<Finding> {
    const REINSTALL: &str = "install gcgroupfs again (install.sh)";
    let library = match run::library() {
        Ok(library) => library,
        Err(error) => return vec![Finding::fail(format!("{error:#}"), REINSTALL)],
    };
    let mut found = Vec::new();
    for file in [&library, &library.with_file_name(run::HOOK)] {
        let mode = fs::metadata(file).map_or(0, |file| file.permissions().mode());
        if mode & 0o004 == 0 {
            found.push(Finding::fail(
                format!("{} is not readable for all users", file.display()),
                format!("chmod a+r {}", file.display()),
            ));
        }
    }
    let tried = Command::new("/bin/true").env("LD_PRELOAD", &library).output();
    match tried {
        Ok(output) if output.status.success() && output.stderr.is_empty() => {
            found.push(Finding::ok(format!("{} loads", library.display())));
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or("the program ends with an error");
            found.push(Finding::fail(
                format!("{} does not load: {said}", library.display()),
                "install a build for this machine's C library",
            ));
        }
        Err(error) => found.push(Finding::warn(format!("/bin/true: {error}"), "")),
    }
    found
}

fn preload(machine: &Machine) -> Vec<Finding> {
    let list = fs::read_to_string(machine.path("/etc/ld.so.preload")).unwrap_or_default();
    let ours: Vec<&str> = list
        .split_ascii_whitespace()
        .filter(|entry| entry.ends_with("/libgcgroup.so"))
        .collect();
    let missing = ours.iter().find(|entry| !machine.path(entry).exists());
    vec![match (missing, ours.as_slice()) {
        (Some(missing), _) => Finding::fail(
            format!("/etc/ld.so.preload names {missing}, which does not exist"),
            "gc-everywhere on, or remove the line",
        ),
        (None, []) => Finding::ok("only programs started by gcgroupfs run are governed"),
        (None, [one]) => Finding::ok(format!(
            "{one} is in /etc/ld.so.preload: every new program is governed"
        )),
        (None, several) => Finding::warn(
            format!(
                "/etc/ld.so.preload names {} libraries of gcgroupfs",
                several.len()
            ),
            "remove all lines but one",
        ),
    }]
}

fn rules(_: &Machine) -> Vec<Finding> {
    let path = paths::configuration();
    if !path.exists() {
        return vec![Finding::ok(format!("no {}: no rules", path.display()))];
    }
    vec![match config::read(&path) {
        Ok(_) => Finding::ok(format!("{} is valid", path.display())),
        Err(error) => Finding::fail(
            format!("{error:#}"),
            "correct it; the daemon keeps its former rules, and does not start with these",
        ),
    }]
}

fn daemon(machine: &Machine) -> Vec<Finding> {
    let start = "systemctl start gcgroupfs, or: gcgroupfs mount";
    let socket = machine.socket.display();
    let pid = match machine.daemon() {
        Daemon::Absent(error) => return vec![Finding::fail(format!("{error:#}"), start)],
        Daemon::Hung { pid } => {
            let named = pid.map_or(String::new(), |pid| format!(" (process {pid})"));
            let waited = PATIENCE.as_secs();
            return vec![Finding::fail(
                format!("the daemon at {socket}{named} does not answer within {waited} s"),
                "if a signal or a debugger has stopped it, continue it; otherwise: systemctl restart gcgroupfs",
            )];
        }
        Daemon::Answers { pid } => *pid,
    };
    // Readable for root and for the daemon's user only.
    let program = pid.and_then(|pid| fs::read_link(format!("/proc/{pid}/exe")).ok());
    let is_replaced = program.is_some_and(|program| program.to_string_lossy().ends_with(" (deleted)"));
    vec![if is_replaced {
        Finding::warn(
            format!("the daemon at {socket} runs a program that has been replaced since"),
            "systemctl restart gcgroupfs; governed programs go on",
        )
    } else {
        Finding::ok(format!("answers at {socket}"))
    }]
}

fn mount(machine: &Machine) -> Vec<Finding> {
    // A mount whose daemon hangs answers nothing.
    if !machine.answers() {
        return Vec::new();
    }
    let Some(point) = gcgroupfs_fuse::mount::point_of(&machine.socket) else {
        return vec![Finding::warn(
            "the control files are not mounted here",
            "gcgroupfs get and set use the socket; in a container: bind-mount /gcgroup",
        )];
    };
    vec![match File::open(point.join("gcgroup.events")) {
        Ok(_) => Finding::ok(format!("control files at {}", point.display())),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Finding::warn(
            format!("{}: {error}", point.display()),
            "start the daemon with --allow-other",
        ),
        Err(error) => Finding::fail(
            format!("{}: {error}", point.display()),
            format!("umount -l {}, and restart the daemon", point.display()),
        ),
    }]
}

/// The daemon's stored settings.
fn settings(machine: &Machine) -> Vec<Finding> {
    let Some(events) = machine.control_file("gcgroup.events") else {
        return Vec::new();
    };
    let number = |key: &str| {
        let mut lines = events.lines().filter_map(|line| line.split_once(' '));
        let value = lines.find(|(name, _)| *name == key);
        value
            .and_then(|(_, value)| value.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let mut found = Vec::new();
    if number("journal_degraded") != 0 {
        found.push(Finding::fail(
            "settings cannot be stored: they hold until the daemon ends",
            "make room on the disk with the daemon's state, and mount it writable; the daemon then stores them",
        ));
    }
    match number("journal_damaged") {
        0 => {}
        lines => found.push(Finding::warn(
            format!("{lines} lines of the state file were damaged and not used"),
            "check the settings of groups; the log names the copy of the damaged file",
        )),
    }
    if found.is_empty() {
        found.push(Finding::ok("stored"));
    }
    found
}

fn unmanaged(machine: &Machine) -> Vec<Finding> {
    let Some(list) = machine.control_file("unmanaged") else {
        return Vec::new();
    };
    match list.lines().count() {
        0 => vec![Finding::ok("every process with GPU memory is governed")],
        count => vec![Finding::warn(
            format!("{count} processes use a GPU without the library (file unmanaged)"),
            "start them with gcgroupfs run, or gc-everywhere on; static programs cannot be governed",
        )],
    }
}

/// Programs that run containers, and where each looks for CDI specifications.
const RUNTIMES: &[&str] = &["docker", "podman", "containerd", "crio"];
const CDI: &[&str] = &["/etc/cdi/gcgroupfs.json", "/var/run/cdi/gcgroupfs.json"];

fn containers(machine: &Machine) -> Vec<Finding> {
    let runtimes: Vec<_> = RUNTIMES
        .iter()
        .copied()
        .filter(|name| program(name).is_some())
        .collect();
    if runtimes.is_empty() {
        return vec![Finding::ok("no container runtime is installed")];
    }
    let make = "gcgroupfs cdi --output /etc/cdi/gcgroupfs.json";
    let installed = CDI
        .iter()
        .find_map(|path| Some((*path, fs::read_to_string(machine.path(path)).ok()?)));
    vec![match (installed, cdi::specification(&machine.socket)) {
        (None, _) => Finding::warn(
            format!("{} finds no device gcgroupfs/hook", word(&runtimes.join(","))),
            make,
        ),
        (Some((path, text)), Ok(now)) if text.trim() != now.trim() => {
            Finding::warn(format!("{path} is not what gcgroupfs cdi prints now"), make)
        }
        (Some((path, _)), _) => Finding::ok(format!("{path} is installed")),
    }]
}

/// Returns the path of a program that the shell would find.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .chain([Path::new("/usr/sbin").to_owned()])
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    /// Returns a machine without a daemon, with these files.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let machine = Machine::new(directory.path().to_owned(), "/nowhere".into(), true);
        (directory, machine)
    }

    fn levels(look: fn(&Machine) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<Level> {
        let (_directory, machine) = machine(files);
        let found = look(&machine);
        for finding in &found {
            assert_eq!(
                finding.level == Level::Ok,
                finding.remedy.is_empty(),
                "{finding:?}"
            );
        }
        found.into_iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn kernel_older_than_required_fails() {
        let of = |release| levels(kernel, &[("/proc/sys/kernel/osrelease", release)]);
        assert_eq!(of("5.3.18-generic\n"), [Level::Fail]);
        assert_eq!(of("5.4\n"), [Level::Ok]);
        assert_eq!(of("6.1.0-28-amd64\n"), [Level::Ok]);
        assert_eq!(of("unknown\n"), [Level::Warn]);
    }

    #[test]
    fn missing_fuse_device_fails() {
        assert_eq!(levels(fuse, &[]), [Level::Fail]);
        assert_eq!(levels(fuse, &[("/dev/fuse", "")]), [Level::Ok]);
    }

    #[test]
    fn preload_list_must_name_one_existing_library() {
        let list = |text| ("/etc/ld.so.preload", text);
        let library = ("/usr/lib/libgcgroup.so", "");
        assert_eq!(levels(preload, &[]), [Level::Ok]);
        let ours = list("/usr/lib/other.so /usr/lib/libgcgroup.so\n");
        assert_eq!(levels(preload, &[ours]), [Level::Fail]);
        assert_eq!(levels(preload, &[ours, library]), [Level::Ok]);
        let twice = list("/usr/lib/libgcgroup.so\n/usr/lib/libgcgroup.so\n");
        assert_eq!(levels(preload, &[twice, library]), [Level::Warn]);
    }

    #[test]
    fn absent_daemon_fails_once() {
        assert_eq!(levels(daemon, &[]), [Level::Fail]);
        assert_eq!(levels(mount, &[]), []);
        assert_eq!(levels(settings, &[]), []);
        assert_eq!(levels(unmanaged, &[]), []);
    }
}
