//! Delay that an unprivileged user can cause to another user's freezes, with so many threads that more make
//! no difference. A freeze is written and read back repeatedly.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::{Uid, setfsuid};
use serde_json::json;
use support::{Config, Mount, wait_until};

use crate::crowd::{Crowd, list};
use crate::files::read;
use crate::report::{Report, quantile};

/// As many processes as a loaded node has.
const PROCESSES: usize = 2000;
const GREEDY: usize = 64;
const FREEZES: usize = 300;
const PAUSE: Duration = Duration::from_millis(3);
/// Milliseconds.
const BUDGET: f64 = 25.0;
/// A user id without a name, beyond those of most machines.
const USER: u32 = (1 << 30) + 77;

/// Operation that a thread repeats: arguments are the mount's path and the path of its own group.
type Deed = fn(&Path, &Path);

const DEEDS: [(&str, Deed); 8] = [
    ("nothing", |_, _| thread::sleep(PAUSE)),
    ("cat of its own group", |_, own| read(&own.join("memory.current"))),
    ("cat of the root's totals", |root, _| {
        read(&root.join("memory.stat"))
    }),
    ("cat of the root's processes", |root, _| {
        read(&root.join("gcgroup.procs"))
    }),
    ("cat of the root's kernels", |root, _| {
        read(&root.join("gcgroup.stat"))
    }),
    ("ls of the root", |root, _| assert!(list(root) > PROCESSES)),
    ("mkdir and rmdir", |_, own| {
        fs::create_dir(own.join("child")).expect("the path is free");
        fs::remove_dir(own.join("child")).expect("the group is empty");
    }),
    ("chmod", |_, own| {
        fs::set_permissions(own, fs::Permissions::from_mode(0o700)).expect("the owner may change the mode");
        fs::set_permissions(own, fs::Permissions::from_mode(0o755)).expect("the owner may change the mode");
    }),
];

pub(crate) fn run(report: &mut Report) {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    let crowd = Crowd::new(&mount.socket(), PROCESSES);
    wait_until("every process is registered", || {
        mount.read(".", "gcgroup.procs").lines().count() == PROCESSES
    });
    let team = mount.path().join("team");
    fs::create_dir(&team).expect("root may create a group");
    chown(&team, Some(USER), Some(USER)).expect("root may change the owner");
    let freeze = mount.file(crowd.pids()[0], "compute.freeze");
    for (what, deed) in DEEDS {
        let (is_over, nr_done) = (AtomicBool::new(false), AtomicUsize::new(0));
        let took = thread::scope(|scope| {
            for number in 0..GREEDY {
                let own = team.join(format!("own-{number}"));
                let (root, is_over, nr_done) = (mount.path(), &is_over, &nr_done);
                scope.spawn(move || be_greedy(&root, own, deed, is_over, nr_done));
            }
            wait_until("each greedy thread has completed operations", || {
                nr_done.load(Relaxed) >= 2 * GREEDY
            });
            let took = freezes(&freeze);
            is_over.store(true, Relaxed);
            took
        });
        let at = |share| quantile(took.0.clone(), share);
        let done = nr_done.load(Relaxed) as f64 / took.1.as_secs_f64();
        report.add(
            &format!("a freeze while {GREEDY} threads of another user do: {what} (99th percentile)"),
            at(0.99),
            "msec",
            BUDGET,
            json!({ "msec_p50": at(0.5), "msec_max": at(1.0), "done_per_second": done.round() }),
        );
    }
}

fn be_greedy(root: &Path, own: PathBuf, deed: Deed, is_over: &AtomicBool, nr_done: &AtomicUsize) {
    // Affects this thread only.
    setfsuid(Uid::from_raw(USER));
    if !own.exists() {
        fs::create_dir(&own).expect("the user may create a group");
    }
    while !is_over.load(Relaxed) {
        deed(root, &own);
        nr_done.fetch_add(1, Relaxed);
    }
}

/// Returns the milliseconds of each freeze, and the duration of all.
fn freezes(file: &Path) -> (Vec<f64>, Duration) {
    let begin = Instant::now();
    let took = (0..FREEZES).map(|number| {
        thread::sleep(PAUSE);
        let begin = Instant::now();
        fs::write(file, if number % 2 == 0 { "1" } else { "0" }).expect("root may write the file");
        begin.elapsed().as_secs_f64() * 1e3
    });
    (took.collect(), begin.elapsed())
}
