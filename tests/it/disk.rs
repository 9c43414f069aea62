//! Tests a state directory whose file system is full or read-only, or that is removed, with a plain daemon
//! and a supervised one: settings stay in force, the root directory reports that they are not stored, and
//! they are stored as soon as that is possible, without another write.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;

use nix::mount::{MntFlags, MsFlags, mount as mount_at, umount2};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use support::{Config, Mount, artifacts, wait_until};

use crate::driver::{Dir, DriverShell};
use crate::supervise::kill9;

const MIB: u64 = 1 << 20;

/// A file system mounted over the state directory until it is dropped.
pub(crate) struct Over(PathBuf);

impl Over {
    /// Mounts a tmpfs of `kilobytes` KiB over the state directory.
    pub(crate) fn small(mount: &Mount, kilobytes: u32) -> Self {
        let path = mount.state_dir();
        let size = format!("size={kilobytes}k");
        mount_at(
            Some("small"),
            &path,
            Some("tmpfs"),
            MsFlags::empty(),
            Some(size.as_str()),
        )
        .expect("root may mount");
        Self(path)
    }

    /// Makes the state directory itself read-only.
    fn read_only(mount: &Mount) -> Self {
        let path = mount.state_dir();
        let none = None::<&str>;
        mount_at(Some(&path), &path, none, MsFlags::MS_BIND, none).expect("root may mount");
        let over = Self(path);
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount_at(none, &over.0, none, flags, none).expect("root may mount");
        over
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// A daemon, either plain or supervised.
struct Case {
    mount: Mount,
    is_supervised: bool,
}

impl Case {
    fn both() -> impl Iterator<Item = Self> {
        [false, true].into_iter().map(|is_supervised| {
            let config = Config::default();
            let config = if is_supervised {
                config.arg("--supervise")
            } else {
                config
            };
            let mount = Mount::with(config);
            Self { mount, is_supervised }
        })
    }

    /// Restarts the daemon on a small file system.
    fn on_small(&mut self) -> Over {
        self.mount.stop();
        let small = Over::small(&self.mount, 64);
        self.mount.restart();
        small
    }

    /// Kills the daemon and starts a successor.
    fn kill9(&mut self) {
        if self.is_supervised {
            kill9(&self.mount);
        } else {
            self.mount.kill9();
            self.mount.restart();
        }
    }

    /// Waits by poll(2) until the root's `gcgroup.events` satisfies `condition`.
    fn wait_for(&self, condition: &str) {
        let words = ["wait", "gcgroup.events", condition, "--timeout", "60"];
        let status = self.mount.gcgroupfs(&words).status().expect("the command starts");
        assert!(status.success(), "{condition}: {}", self.mount.log());
    }

    fn has_logged(&self, text: &str) -> usize {
        self.mount.log().matches(text).count()
    }

    /// Waits for a log line, which another thread reads. A nearly full disk may accept some lines, so the
    /// message may be repeated after 10 seconds.
    #[track_caller]
    fn assert_logs_seldom(&self, text: &str) {
        wait_until("the message is logged", || self.has_logged(text) > 0);
        assert!(self.has_logged(text) < 5, "{}", self.mount.log());
    }

    /// Asserts that nothing was unmounted.
    fn assert_serves(&self) {
        let log = self.mount.log();
        assert!(!log.contains("has failed"), "{log}");
    }
}

/// Fills the file system of a directory.
fn fill(over: &Over) -> PathBuf {
    let filler = over.0.join("filler");
    let mut file = File::create(&filler).expect("the file can be created");
    while file.write_all(&[1; 512]).is_ok() {}
    filler
}

fn settings(mount: &Mount) -> PathBuf {
    mount.state_dir().join("settings.jsonl")
}

/// Asserts the limit of a process that may still be returning.
#[track_caller]
fn assert_limit(mount: &Mount, pid: i32, limit: u64) {
    wait_until("the process has registered again", || {
        mount.file(pid, "memory.limit").exists()
    });
    assert_eq!(Dir::of(mount, pid).number("memory.limit"), limit);
}

#[test]
fn write_on_a_full_disk_holds_and_is_stored_later() {
    for mut case in Case::both() {
        let small = case.on_small();
        let shell = DriverShell::start(&case.mount);
        let dir = Dir::of(&case.mount, shell.pid());
        assert_eq!(
            case.mount.read("", "gcgroup.events"),
            "journal_degraded 0\njournal_damaged 0\nunmanaged 0"
        );
        let filler = fill(&small);
        for n in 1..=200_u64 {
            dir.write("memory.limit", n * MIB);
            assert_eq!(dir.number("memory.limit"), n * MIB);
        }
        case.wait_for("journal_degraded=1");
        case.assert_logs_seldom("settings are not saved");
        fs::remove_file(&filler).expect("the file can be removed");
        case.wait_for("journal_degraded=0");
        case.assert_logs_seldom("settings are saved again");
        case.kill9();
        assert_limit(&case.mount, shell.pid(), 200 * MIB);
        case.assert_serves();
        case.mount.stop();
    }
}

#[test]
fn daemon_starts_on_the_old_file_of_a_full_disk() {
    for mut case in Case::both() {
        let small = case.on_small();
        let shell = DriverShell::start(&case.mount);
        let pid = shell.pid();
        Dir::of(&case.mount, pid).write("memory.limit", 7 * MIB);
        let filler = fill(&small);
        for _ in 0..3 {
            case.kill9();
            assert_limit(&case.mount, pid, 7 * MIB);
        }
        wait_until("each start has logged the failed compaction", || {
            case.has_logged("cannot compact") >= 3
        });
        // More than the remainder of a page.
        for n in 1..=100_u64 {
            Dir::of(&case.mount, pid).write("memory.limit", n * MIB);
        }
        case.wait_for("journal_degraded=1");
        fs::remove_file(&filler).expect("the file can be removed");
        case.wait_for("journal_degraded=0");
        case.kill9();
        assert_limit(&case.mount, pid, 100 * MIB);
        case.assert_serves();
        case.mount.stop();
    }
}

#[test]
fn daemon_starts_on_a_full_disk_without_a_file() {
    for mut case in Case::both() {
        case.mount.stop();
        let small = Over::small(&case.mount, 64);
        let filler = fill(&small);
        case.mount.restart();
        let shell = DriverShell::start(&case.mount);
        Dir::of(&case.mount, shell.pid()).write("memory.limit", 7 * MIB);
        case.wait_for("journal_degraded=1");
        fs::remove_file(&filler).expect("the file can be removed");
        case.wait_for("journal_degraded=0");
        case.kill9();
        assert_limit(&case.mount, shell.pid(), 7 * MIB);
        case.assert_serves();
        case.mount.stop();
    }
}

#[test]
fn daemon_on_a_read_only_disk_has_all_settings_and_stores_later() {
    for mut case in Case::both() {
        let shell = DriverShell::start(&case.mount);
        let pid = shell.pid();
        Dir::of(&case.mount, pid).write("memory.limit", 7 * MIB);
        let over = Over::read_only(&case.mount);
        case.kill9();
        assert_limit(&case.mount, pid, 7 * MIB);
        case.wait_for("journal_degraded=1");
        Dir::of(&case.mount, pid).write("memory.limit", 8 * MIB);
        assert_limit(&case.mount, pid, 8 * MIB);
        drop(over);
        case.wait_for("journal_degraded=0");
        case.kill9();
        assert_limit(&case.mount, pid, 8 * MIB);
        case.assert_serves();
    }
}

#[test]
fn removed_file_and_directory_are_made_again() {
    for mut case in Case::both() {
        let shell = DriverShell::start(&case.mount);
        let pid = shell.pid();
        Dir::of(&case.mount, pid).write("memory.limit", 7 * MIB);
        for is_directory in [false, true] {
            if is_directory {
                fs::remove_dir_all(case.mount.state_dir()).expect("the directory can be removed");
            } else {
                fs::remove_file(settings(&case.mount)).expect("the file can be removed");
            }
            // No setting is written meanwhile.
            wait_until("the settings file has the process's settings again", || {
                let text = fs::read_to_string(settings(&case.mount)).unwrap_or_default();
                text.contains(&format!("\"pid\":{pid},"))
            });
            case.wait_for("journal_degraded=0");
            case.kill9();
            assert_limit(&case.mount, pid, 7 * MIB);
        }
        wait_until("the daemon logs the failed write of settings", || {
            case.has_logged("settings are not saved") >= 1
        });
        case.assert_serves();
    }
}

#[test]
fn damaged_line_is_shown_at_the_root() {
    for mut case in Case::both() {
        let shells = [DriverShell::start(&case.mount), DriverShell::start(&case.mount)];
        for (shell, n) in shells.iter().zip(1..) {
            Dir::of(&case.mount, shell.pid()).write("memory.limit", n * MIB);
        }
        case.mount.stop();
        let mut text = fs::read(settings(&case.mount)).expect("the file is readable");
        // Flips a bit in the last line, which belongs to one of the two processes.
        let at = text.len() - 9;
        text[at] ^= 4;
        fs::write(settings(&case.mount), &text).expect("the file is writable");
        case.mount.restart();
        case.wait_for("journal_damaged=1");
        case.assert_logs_seldom("damaged or missing");
        let limits = || {
            let limit = |shell: &DriverShell| Dir::of(&case.mount, shell.pid()).read("memory.limit");
            wait_until("both processes have registered again", || {
                shells
                    .iter()
                    .all(|shell| case.mount.file(shell.pid(), "memory.limit").exists())
            });
            shells.iter().map(limit).collect::<Vec<_>>()
        };
        // At its end the first daemon appended one line for each process; the damaged line has replaced an
        // equal one.
        let limits = limits();
        let is_right = |(limit, n): (&String, u64)| *limit == (n * MIB).to_string() || limit == "max";
        assert!(
            limits.iter().zip(1..).all(is_right),
            "a restored limit was never written: {limits:?}"
        );
    }
}

#[test]
fn daemon_refuses_a_fifo_at_once() {
    let root = tempfile::tempdir().expect("a directory");
    let path = root.path().join("settings.jsonl");
    mkfifo(&path, Mode::from_bits_truncate(0o600)).expect("the FIFO can be made");
    for options in [&["--no-fuse"][..], &["--supervise"]] {
        let mount = root.path().join("mnt");
        fs::create_dir_all(&mount).expect("the directory can be made");
        let output = std::process::Command::new("timeout")
            .arg("60")
            .arg(artifacts().gcgroupfs())
            .arg("mount")
            .args(options)
            .arg(&mount)
            .arg("--state-dir")
            .arg(root.path())
            .arg("--socket")
            .arg(root.path().join("s"))
            .env("LD_LIBRARY_PATH", artifacts().simgpu())
            .env("SIMGPU_DIR", root.path())
            .output()
            .expect("the command starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("settings.jsonl is a FIFO"), "{said}");
    }
}
