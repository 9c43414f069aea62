//! Ends a test run that hangs. A thread that waits in the kernel for the daemon's answer has no deadline, so
//! a watchdog thread reports the hanging processes, aborts their pending requests, and fails the run.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::hang::abort;
use crate::processes::{describe, related};

/// Default of `GCGROUP_TEST_PATIENCE`: seconds for which a daemon or process of a test may exist. Longer than
/// any test takes on the most loaded machine.
const PATIENCE: u64 = 600;

/// Exit status of a failed test run.
const FAILED: i32 = 101;

/// Additional seconds, set by [`allow`].
static MORE: AtomicU64 = AtomicU64::new(0);
static BEGUN: Mutex<BTreeMap<u64, Entry>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(0);
static START: Once = Once::new();

#[derive(Debug)]
struct Entry {
    test: String,
    since: Instant,
    /// Mount point, for a mount.
    point: Option<PathBuf>,
}

/// Registration of a watched object, until it is dropped.
#[derive(Debug)]
pub(crate) struct Begun(u64);

/// Starts watching an object, under the name of the calling thread's test.
pub(crate) fn begin(point: Option<PathBuf>) -> Begun {
    START.call_once(|| {
        thread::spawn(watch);
    });
    let number = NEXT.fetch_add(1, Relaxed);
    let entry = Entry {
        test: thread::current().name().unwrap_or("a thread").to_owned(),
        since: Instant::now(),
        point,
    };
    let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
    begun.insert(number, entry);
    Begun(number)
}

impl Drop for Begun {
    fn drop(&mut self) {
        let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
        begun.remove(&self.0);
    }
}

/// Extends the time limit by `time`, for a test that takes so long by itself.
pub fn allow(time: Duration) {
    MORE.fetch_max(time.as_secs(), Relaxed);
}

fn watch() {
    let patience =
        std::env::var("GCGROUP_TEST_PATIENCE").map_or(PATIENCE, |text| text.parse().expect("seconds"));
    loop {
        thread::sleep(Duration::from_secs(1));
        let begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = Duration::from_secs(patience + MORE.load(Relaxed));
        if let Some(entry) = begun.values().find(|entry| entry.since.elapsed() > allowed) {
            let points: Vec<_> = begun
                .values()
                .filter_map(|entry| entry.point.as_deref())
                .collect();
            end(&format!("{} hangs: more than {allowed:?}", entry.test), &points);
        }
    }
}

/// Reports what all processes are doing, releases those that can be released, and ends the run.
fn end(what: &str, points: &[&Path]) {
    let ours = related(vec![std::process::id()], points);
    // Bypasses the capture of test output.
    let mut out = std::io::stderr();
    let _ = writeln!(out, "\n{what}");
    let _ = writeln!(out, "{}", describe(&ours));
    for point in points {
        abort(point);
    }
    let me = std::process::id();
    for pid in ours.into_iter().filter(|pid| *pid != me) {
        if let Ok(pid) = i32::try_from(pid) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    for point in points {
        let _ = umount2(*point, MntFlags::MNT_DETACH);
    }
    std::process::exit(FAILED);
}
