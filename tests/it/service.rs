//! Tests the notifications to the service manager, with a socket of the test in its place.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{artifacts, wait_for, wait_until};
use tempfile::TempDir;

/// A daemon without a mount that notifies the test; killed when dropped.
struct Service {
    root: TempDir,
    manager: UnixDatagram,
    daemon: Child,
    told: Vec<String>,
}

impl Service {
    fn new() -> Self {
        let root = TempDir::new().expect("a temporary directory");
        let path = root.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("a socket");
        manager.set_nonblocking(true).expect("a flag");
        let mut command = Command::new(artifacts().gcgroupfs());
        command
            .args(["mount", "--no-fuse", "--socket"])
            .arg(root.path().join("sock"))
            .arg("--state-dir")
            .arg(root.path().join("run"))
            .env("LD_LIBRARY_PATH", artifacts().simgpu())
            .env("SIMGPU_DIR", root.path().join("sim"))
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", "400000")
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let daemon = command.spawn().expect("gcgroupfs starts");
        Self {
            root,
            manager,
            daemon,
            told: Vec::new(),
        }
    }

    /// Waits for a notification that begins so, after those that were waited for before.
    #[track_caller]
    fn expect(&mut self, wanted: &str) -> String {
        wait_for(&format!("the daemon notifies {wanted}"), || {
            let mut buffer = [0; 4096];
            while let Ok(length) = self.manager.recv(&mut buffer) {
                self.told
                    .push(String::from_utf8_lossy(&buffer[..length]).into_owned());
            }
            let at = self.told.iter().position(|told| told.starts_with(wanted))?;
            self.told.drain(..=at).next_back()
        })
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.daemon.id().try_into().expect("a pid"));
        kill(pid, signal).expect("the daemon runs");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[test]
fn service_manager_is_told_of_each_state() {
    let mut service = Service::new();
    service.expect("READY=1");
    // The daemon has nothing to do, and its loop runs all the same.
    service.expect("WATCHDOG=1");
    service.expect("WATCHDOG=1");
    service.signal(Signal::SIGHUP);
    let reloading = service.expect("RELOADING=1");
    let (_, time) = reloading.split_once("\nMONOTONIC_USEC=").expect(&reloading);
    assert!(time.parse::<u64>().is_ok_and(|time| time > 0), "{reloading}");
    service.expect("READY=1");
    service.signal(Signal::SIGTERM);
    service.expect("STOPPING=1");
    let mut status = None;
    wait_until("the daemon has ended", || {
        status = service.daemon.try_wait().expect("a child");
        status.is_some()
    });
    assert!(status.is_some_and(|status| status.success()));
    assert!(Path::new(service.root.path()).exists());
}

#[test]
fn version_names_commit_and_abi() {
    let output = Command::new(artifacts().gcgroupfs())
        .arg("--version")
        .output()
        .expect("gcgroupfs runs");
    let text = String::from_utf8(output.stdout).expect("text");
    // The commit is "unknown" where git cannot tell it.
    let wanted = format!("gcgroupfs {} (commit ", env!("CARGO_PKG_VERSION"));
    assert!(text.starts_with(&wanted), "{text}");
    assert!(
        text.ends_with(&format!(", ABI {})\n", gcgroup_abi::VERSION)),
        "{text}"
    );
}
