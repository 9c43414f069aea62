//! The report for a bug tracker. It has no names of users, programs or groups, no settings and no rules.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::Machine;

/// Control files of the root whose contents are counts.
const COUNTS: &[&str] = &[
    "gcgroup.events",
    "gcgroup.stat",
    "memory.stat",
    "compute.stat",
    "devices",
];

/// Writes the report to a new file, which only its owner can read.
///
/// # Errors
/// The file exists or cannot be written.
pub(super) fn write(path: &Path, machine: &Machine, findings: &str) -> io::Result<()> {
    let text = text(machine, findings);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}

fn text(machine: &Machine, findings: &str) -> String {
    let mut out = String::new();
    let mut part = |title: &str, text: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "== {title}\n{}\n", text.trim_end());
    };
    part("gcgroupfs", env!("CARGO_PKG_VERSION"));
    part("doctor", findings);
    for path in ["/proc/version", "/etc/os-release", "/proc/driver/nvidia/version"] {
        if let Ok(text) = fs::read_to_string(machine.path(path)) {
            part(path, &text);
        }
    }
    let mounts = fs::read_to_string(machine.path("/proc/self/mountinfo")).unwrap_or_default();
    let ours: Vec<_> = mounts.lines().filter(|line| line.contains("gcgroup")).collect();
    part("mounts", &ours.join("\n"));
    for name in COUNTS {
        if let Some(text) = machine.control_file(name) {
            part(name, &text);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn report_is_private_and_replaces_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report");
        let machine = Machine::new(directory.path().to_owned(), "/nowhere".into(), true);
        write(&path, &machine, "ok   kernel\n").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("== doctor\nok   kernel\n"), "{text}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = write(&path, &machine, "").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    }
}
