//! Time from a change of an events file until a thousand threads that sleep in poll(2) are awake, measured
//! from before the write that causes the change. The threads run on any CPU.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use serde_json::{Value, json};
use support::{DEADLINE, Mount, wait_until};

use crate::crowd::Crowd;
use crate::report::{Report, quantile};

const POLLERS: usize = 1000;
const CHANGES: usize = 50;
/// Budget for the wake-up of every poller, milliseconds.
const BUDGET: f64 = 10.0;
/// Longer than the pause between two wake-ups: each change is measured alone.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn run(report: &mut Report) {
    on_files_of_their_own(report);
    on_one_file(report);
    by_one_epoll(report);
}

/// Measures the cost of other watchers: each poller watches a different process, and one process changes.
fn on_files_of_their_own(report: &mut Report) {
    let mount = Mount::new();
    let crowd = Crowd::new(&mount.socket(), POLLERS);
    let pids = crowd.pids();
    wait_until("every process is registered", || {
        mount.read(".", "gcgroup.procs").lines().count() == POLLERS
    });
    let pollers = Pollers::new(pids.iter().map(|pid| mount.file(pid, "memory.events")));
    let mut took = Vec::new();
    // Distributed over all pollers.
    for number in (0..CHANGES).map(|n| n * 619 % POLLERS) {
        thread::sleep(PAUSE);
        let change =
            || fs::write(mount.file(pids[number], "memory.limit"), "1").expect("the limit is accepted");
        for (who, msec) in pollers.after(change, 1) {
            assert_eq!(who, number, "another poller was woken");
            took.push(msec);
            pollers.go_on(who);
        }
    }
    report.add(
        "a change until its poller is awake, beside 999 of other files (99th percentile)",
        quantile(took.clone(), 0.99),
        "msec",
        BUDGET,
        spread(took),
    );
}

/// Measures the time until the last of the pollers is awake, all of the same file.
fn on_one_file(report: &mut Report) {
    let (mount, _crowd, pid) = one();
    let pollers = Pollers::new((0..POLLERS).map(|_| mount.file(&pid, "memory.events")));
    let (mut first, mut middle, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1..=CHANGES {
        thread::sleep(PAUSE);
        let woken = pollers.after(|| change(&mount, &pid), POLLERS);
        let mut took: Vec<f64> = woken.into_iter().map(|(_, msec)| msec).collect();
        took.sort_by(f64::total_cmp);
        first.push(took[0]);
        middle.push(took[POLLERS / 2]);
        last.push(took[POLLERS - 1]);
        (0..POLLERS).for_each(|who| pollers.go_on(who));
        // Waits until they have read, so that this does not delay the next change.
        pollers.wait_until_asleep((number + 1) * POLLERS);
    }
    let detail = json!({ "first": spread(first), "half": spread(middle), "last": spread(last.clone()) });
    report.add(
        "a change until the last of 1000 pollers of one file is awake (median)",
        quantile(last, 0.5),
        "msec",
        BUDGET,
        detail,
    );
}

/// Measures one thread that watches the same file a thousand times. The kernel asks the daemon about each
/// before the thread continues, so the time is that until the end of the first look.
fn by_one_epoll(report: &mut Report) {
    let (mount, _crowd, pid) = one();
    let events = mount.file(&pid, "memory.events");
    let mut files: Vec<File> = (0..POLLERS)
        .map(|_| File::open(&events).expect("the file opens"))
        .collect();
    let epoll = Epoll::new(EpollCreateFlags::empty()).expect("an epoll");
    let flags = EpollFlags::EPOLLPRI | EpollFlags::EPOLLET;
    for (file, number) in files.iter_mut().zip(0..) {
        arm(file);
        epoll
            .add(&*file, EpollEvent::new(flags, number))
            .expect("the file can be added");
    }
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let mut seen = vec![EpollEvent::empty(); 64];
    for _ in 0..CHANGES {
        thread::sleep(PAUSE);
        let begin = Instant::now();
        change(&mount, &pid);
        let mut woken = vec![false; POLLERS];
        let mut when = Vec::new();
        while woken.iter().any(|woken| !woken) {
            let ready = epoll
                .wait(&mut seen, EpollTimeout::from(60_000_u16))
                .expect("epoll_wait(2) succeeds");
            assert!(ready > 0, "some pollers were not woken");
            when.push(msec(begin, Instant::now()));
            for event in &seen[..ready] {
                woken[usize::try_from(event.data()).expect("the number fits")] = true;
            }
        }
        first.extend(when.first());
        last.extend(when.last());
        files.iter_mut().for_each(arm);
    }
    report.add(
        "a change until one epoll of 1000 files has its first (median)",
        quantile(first.clone(), 0.5),
        "msec",
        BUDGET,
        json!({ "first": spread(first), "last": spread(last) }),
    );
}

/// Returns a process to watch.
fn one() -> (Mount, Crowd, String) {
    let mount = Mount::new();
    let crowd = Crowd::new(&mount.socket(), 1);
    let pid = crowd.pids()[0].to_string();
    wait_until("the process is registered", || mount.path().join(&pid).exists());
    (mount, crowd, pid)
}

/// Sets a limit below the usage, which counts as an event.
fn change(mount: &Mount, pid: &str) {
    fs::write(mount.file(pid, "memory.limit"), "1").expect("the limit is accepted");
}

fn msec(from: Instant, to: Instant) -> f64 {
    to.duration_since(from).as_secs_f64() * 1e3
}

/// Returns quantiles, milliseconds.
fn spread(took: Vec<f64>) -> Value {
    let at = |share| quantile(took.clone(), share);
    json!({ "msec_p50": at(0.5), "msec_p99": at(0.99), "msec_max": at(1.0) })
}

/// Threads that sleep in poll(2).
struct Pollers {
    score: Arc<Score>,
    told: Vec<Sender<()>>,
}

/// Counters of the pollers. Only the last poller wakes the counting thread: each wake-up costs as much as
/// what is measured.
struct Score {
    /// Number of times that any poller has gone to sleep.
    nr_sleeps: AtomicUsize,
    /// Start of the times in `woken`: nanoseconds until each poller has woken, 0 while it sleeps.
    since: Instant,
    woken: Vec<AtomicU64>,
    nr_woken: AtomicUsize,
    nr_wanted: AtomicUsize,
    counts: Thread,
}

impl Score {
    fn has_woken(&self, number: usize) {
        let nanos = u64::try_from(self.since.elapsed().as_nanos()).expect("nanoseconds of centuries fit");
        self.woken[number].store(nanos, Relaxed);
        if self.nr_woken.fetch_add(1, SeqCst) + 1 == self.nr_wanted.load(SeqCst) {
            self.counts.unpark();
        }
    }
}

impl Pollers {
    fn new(paths: impl Iterator<Item = PathBuf>) -> Self {
        let score = Arc::new(Score {
            nr_sleeps: AtomicUsize::new(0),
            since: Instant::now(),
            woken: (0..POLLERS).map(|_| AtomicU64::new(0)).collect(),
            nr_woken: AtomicUsize::new(0),
            nr_wanted: AtomicUsize::new(0),
            counts: thread::current(),
        });
        let start = |(number, path): (usize, PathBuf)| {
            let mut file = File::open(path).expect("the file opens");
            let (go_on, told) = channel::<()>();
            let score = score.clone();
            let body = move || {
                loop {
                    arm(&mut file);
                    score.nr_sleeps.fetch_add(1, Relaxed);
                    let mut watched = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
                    poll(&mut watched, PollTimeout::NONE).expect("poll(2) succeeds");
                    score.has_woken(number);
                    if told.recv().is_err() {
                        return;
                    }
                }
            };
            let builder = thread::Builder::new().stack_size(64 << 10);
            builder.spawn(body).expect("room for another thread");
            go_on
        };
        let told: Vec<_> = paths.enumerate().map(start).collect();
        let pollers = Self { score, told };
        pollers.wait_until_asleep(POLLERS);
        pollers
    }

    /// Makes a change and waits until `nr_wanted` pollers are awake; returns their numbers and times,
    /// milliseconds.
    fn after(&self, change: impl FnOnce(), nr_wanted: usize) -> Vec<(usize, f64)> {
        let score = &self.score;
        score.nr_woken.store(0, SeqCst);
        score.nr_wanted.store(nr_wanted, SeqCst);
        let begin = Instant::now();
        change();
        while score.nr_woken.load(SeqCst) < nr_wanted {
            thread::park_timeout(DEADLINE);
            assert!(begin.elapsed() < DEADLINE, "some pollers were not woken");
        }
        let woken = score.woken.iter().enumerate();
        let woken = woken.map(|(who, at)| (who, Duration::from_nanos(at.swap(0, Relaxed))));
        let awake = woken.filter(|(_, at)| !at.is_zero());
        awake
            .map(|(who, at)| (who, msec(begin, score.since + at)))
            .collect()
    }

    fn go_on(&self, who: usize) {
        self.told[who].send(()).expect("the poller waits");
    }

    /// Waits until the pollers have gone to sleep `often` times, all together.
    fn wait_until_asleep(&self, often: usize) {
        wait_until("the pollers have all gone to sleep", || {
            self.score.nr_sleeps.load(Relaxed) >= often
        });
    }
}

/// Reads the file from the start, after which the next change wakes.
fn arm(file: &mut File) {
    file.rewind().expect("the file can be rewound");
    file.read_to_string(&mut String::new())
        .expect("the file is readable");
}
