//! From a change of an events file to those who poll it, a thousand of them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use serde_json::json;
use support::{Mount, wait_until};

use crate::crowd::Crowd;
use crate::report::{Report, quantile};

const POLLERS: u64 = 1000;
const CHANGES: u64 = 50;

pub fn run(report: &mut Report) {
    let mount = Mount::new();
    let crowd = Crowd::new(&mount.socket(), 1);
    let pid = crowd.pids()[0].to_string();
    wait_until("it is registered", || mount.path().join(&pid).exists());
    let events = mount.file(&pid, "memory.events");
    let mut files: Vec<File> = (0..POLLERS)
        .map(|_| File::open(&events).expect("opens"))
        .collect();
    let epoll = Epoll::new(EpollCreateFlags::empty()).expect("an epoll");
    for (file, number) in files.iter_mut().zip(0..) {
        arm(file);
        epoll
            .add(
                &*file,
                EpollEvent::new(EpollFlags::EPOLLPRI | EpollFlags::EPOLLET, number),
            )
            .expect("watches");
    }
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let mut seen = vec![EpollEvent::empty(); 2000];
    for _ in 0..CHANGES {
        // Beyond the pause between two wake-ups: this is about one change, and not about many.
        std::thread::sleep(Duration::from_millis(20));
        let begin = Instant::now();
        // Below what is used, which counts.
        fs::write(mount.file(&pid, "memory.limit"), "1").expect("is taken");
        let since = || begin.elapsed().as_secs_f64() * 1e3;
        let mut woken = BTreeSet::new();
        while woken.len() < files.len() {
            let ready = epoll
                .wait(&mut seen, EpollTimeout::from(60_000_u16))
                .expect("waits");
            assert!(ready > 0, "{} of them are not woken", files.len() - woken.len());
            if woken.is_empty() {
                first.push(since());
            }
            woken.extend(seen[..ready].iter().map(EpollEvent::data));
        }
        last.push(since());
        files.iter_mut().for_each(arm);
    }
    let detail = json!({
        "msec_p99": quantile(first.clone(), 0.99),
        "msec_until_the_last": quantile(last.clone(), 0.5),
        "msec_until_the_last_p99": quantile(last, 0.99),
    });
    report.add(
        "a change until the first of 1000 pollers is woken",
        quantile(first, 0.5),
        "msec",
        10.0,
        detail,
    );
}

/// Reads it from the start, after which the next change wakes.
fn arm(file: &mut File) {
    file.rewind().expect("seeks");
    file.read_to_string(&mut String::new()).expect("reads");
}
