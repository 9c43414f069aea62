//! Time of a request and a registration beside ten thousand idle connections of a hundred users, against an
//! idle socket.

use std::fs;
use std::io::{PipeReader, Read as _, Write as _, pipe};
use std::path::Path;
use std::time::Instant;

use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};
use serde_json::json;
use support::{
    Config, Mount, ask_for_devices, idle_connections, open_connection, raise_descriptors, wait_until,
};

use crate::crowd::register;
use crate::report::{Report, quantile};

const USERS: u32 = 100;
const EACH: usize = 100;
/// First user id; without a name on most machines.
const FIRST: u32 = 1 << 30;
const REQUESTS: usize = 1000;
const REGISTRATIONS: usize = 200;
const ROUNDS: usize = 8;
/// Descriptors that the daemon needs: half of them are for connections.
const NEEDED: u64 = 2 * USERS as u64 * EACH as u64;
/// Budget for the ratio of the medians, beside over alone.
const BUDGET: f64 = 2.0;

pub(crate) fn run(report: &mut Report) {
    let what = "beside 10 000 idle connections, over none";
    let most = raise_descriptors();
    if most < NEEDED {
        return report.skip(what, &format!("of {NEEDED} descriptors there are {most}"));
    }
    let mount = Mount::with(Config::default().arg("--allow-other"));
    let socket = mount.socket();
    // In turn, so that other activity of the machine affects both. Idle connections last for 10 seconds.
    let (mut alone, mut beside) = (Measured::default(), Measured::default());
    for _ in 0..ROUNDS {
        alone.add(&socket);
        let crowd = idle_connections(&socket, FIRST..FIRST + USERS, EACH);
        beside.add(&socket);
        let are_there = crowd
            .iter()
            .filter(|connection| ask_for_devices(connection).is_ok());
        let count = are_there.count();
        // The measuring processes take a connection now and then.
        assert!(
            count * 100 >= crowd.len() * 97,
            "only {count} connections are open"
        );
        drop(crowd);
        wait_until("the daemon has closed the clients' connections", || {
            let daemon = mount.daemon().expect("the daemon runs");
            let descriptors = fs::read_dir(format!("/proc/{daemon}/fd")).expect("proc(5)");
            descriptors.count() < EACH
        });
    }
    for (name, alone, beside) in [
        ("a request", alone.requests, beside.requests),
        ("a registration", alone.registrations, beside.registrations),
    ] {
        let of = |values: &[f64], share| quantile(values.to_vec(), share);
        let detail = |values: &[f64]| json!({ "p50": of(values, 0.5), "p99": of(values, 0.99) });
        report.add(
            &format!("{name} {what}"),
            of(&beside, 0.5) / of(&alone, 0.5),
            "times",
            BUDGET,
            json!({ "usec_alone": detail(&alone), "usec_beside": detail(&beside) }),
        );
    }
}

/// Times, microseconds.
#[derive(Default)]
struct Measured {
    requests: Vec<f64>,
    registrations: Vec<f64>,
}

impl Measured {
    fn add(&mut self, socket: &Path) {
        self.requests
            .extend((0..REQUESTS / ROUNDS).map(|_| time(|| ask_for_devices(&open_connection(socket)?))));
        self.registrations
            .extend((0..REGISTRATIONS / ROUNDS).map(|_| registration(socket)));
    }
}

fn time(call: impl FnOnce() -> nix::Result<()>) -> f64 {
    let begin = Instant::now();
    call().expect("the daemon serves");
    begin.elapsed().as_secs_f64() * 1e6
}

/// Returns the time measured by a new process: each process may register only a few times in a second.
fn registration(socket: &Path) -> f64 {
    let (from, mut to): (PipeReader, _) = pipe().expect("a pipe");
    // SAFETY: the child does little but system calls, and never returns from here.
    match unsafe { fork() }.expect("room for another process") {
        ForkResult::Parent { child } => {
            drop(to);
            let mut bytes = [0; 8];
            (&from).read_exact(&mut bytes).expect("the child registers");
            waitpid(child, None).expect("the process is a child");
            f64::from_le_bytes(bytes)
        }
        ForkResult::Child => {
            let took = time(|| register(socket).map(drop));
            let _ = to.write_all(&took.to_le_bytes());
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
    }
}
