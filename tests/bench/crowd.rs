//! The daemon with a thousand registered processes against the daemon with ten.
//!
//! The processes are real and register like a hook, but do not load a driver, which the daemon cannot see.

use std::fs;
use std::io::IoSlice;
use std::mem::offset_of;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use gcgroup_abi::Usage;
use gcgroup_abi::map::USAGE_SIZE;
use gcgroup_abi::message::{Hello, RegistrationReply};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, sendmsg, socket,
};
use nix::sys::uio::pwrite;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, Uid, fork, ftruncate, pause, setuid};
use serde_json::json;
use support::{Mount, wait_until};

use crate::files::{read, samples};
use crate::report::{Report, quantile};

const FEW: usize = 10;
const MANY: usize = 1000;

pub(crate) fn run(report: &mut Report) {
    let few = measure(FEW);
    let many = measure(MANY);
    let detail = |of: fn(&Measured) -> f64| json!({ "usec_few": of(&few), "usec_many": of(&many) });
    let cat = |measured: &Measured| measured.cat;
    report.add(
        "cat with 1000 processes, over 10",
        many.cat / few.cat,
        "times",
        2.0,
        detail(cat),
    );
    let lookup = |measured: &Measured| measured.lookup;
    report.add(
        "look-up with 1000 processes, over 10",
        many.lookup / few.lookup,
        "times",
        2.0,
        detail(lookup),
    );
    let ls = |measured: &Measured| measured.ls;
    report.add(
        "ls of a process with 1000 processes, over 10",
        many.ls / few.ls,
        "times",
        2.0,
        detail(ls),
    );
    let each = |measured: &Measured| measured.ls_root;
    report.add(
        "ls of the root for each process, 1000 over 10",
        many.ls_root / few.ls_root,
        "times",
        2.0,
        detail(each),
    );
    let detail = json!({ "with_10": few.resident });
    report.add(
        "resident memory with 1000 processes",
        many.resident,
        "MB",
        48.0,
        detail,
    );
    let own = (many.own - few.own) / (MANY - FEW) as f64;
    let detail = json!({ "kB_with_10": few.own, "kB_with_1000": many.own });
    report.add(
        "the daemon's own memory for each process, beyond its blocks",
        own,
        "kB",
        6.0,
        detail,
    );
}

struct Measured {
    /// Medians, microseconds.
    cat: f64,
    lookup: f64,
    ls: f64,
    /// Per listed process.
    ls_root: f64,
    /// Megabytes.
    resident: f64,
    /// Memory not shared with other processes, kilobytes.
    own: f64,
}

fn measure(count: usize) -> Measured {
    let mount = Mount::new();
    let crowd = Crowd::new(&mount.socket(), count);
    wait_until("every process is registered", || {
        mount.read(".", "gcgroup.procs").lines().count() == count
    });

    let directories: Vec<_> = crowd
        .0
        .iter()
        .map(|pid| mount.path().join(pid.to_string()))
        .collect();
    let mut next = directories.iter().cycle();
    let mut each = || next.next().expect("a cycle has a next element");
    let cat = quantile(samples(4000, || read(&each().join("memory.current"))), 0.5);
    let lookup = quantile(samples(4000, || assert!(each().exists())), 0.5);
    let ls = quantile(samples(1000, || assert!(list(each()) > 5)), 0.5);
    let ls_root = quantile(samples(200, || assert!(list(&mount.path()) > count)), 0.5) / count as f64;
    Measured {
        cat,
        lookup,
        ls,
        ls_root,
        resident: status(mount.daemon().expect("the daemon runs"), "VmRSS:") / 1024.0,
        own: status(mount.daemon().expect("the daemon runs"), "RssAnon:"),
    }
}

pub(crate) fn list(path: &Path) -> usize {
    fs::read_dir(path).expect("a directory").count()
}

/// Returns a number of `/proc/PID/status`, kilobytes.
fn status(pid: Pid, key: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a living process");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .expect("proc_pid_status(5) has the key");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Registered processes; killed when dropped.
pub(crate) struct Crowd(Vec<Pid>);

/// Processes per user: the daemon limits each user.
const OF_A_USER: usize = 4000;

impl Crowd {
    pub(crate) fn new(socket: &Path, count: usize) -> Self {
        let mut crowd = Self(Vec::new());
        for number in 0..count {
            // SAFETY: the child only makes system calls and never returns from here.
            match unsafe { fork() }.expect("room for another process") {
                ForkResult::Parent { child } => crowd.0.push(child),
                ForkResult::Child => {
                    // The first belong to the parent's user, so that a few can be started without root.
                    let user = u32::try_from(number / OF_A_USER).unwrap_or(0);
                    if user > 0 {
                        let _ = setuid(Uid::from_raw(USERS + user));
                    }
                    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
                    let registered = register(socket);
                    while registered.is_ok() {
                        pause();
                    }
                    // SAFETY: ends the child without the parent's exit handlers.
                    unsafe { libc::_exit(1) }
                }
            }
        }
        crowd
    }

    pub(crate) fn pids(&self) -> Vec<i32> {
        self.0.iter().map(|pid| pid.as_raw()).collect()
    }
}

/// First of the user ids without a name, beyond those of most machines.
const USERS: u32 = 1 << 30;

impl Drop for Crowd {
    fn drop(&mut self) {
        for pid in &self.0 {
            // Our own children, not yet waited for.
            let _ = kill(*pid, Signal::SIGKILL);
            let _ = waitpid(*pid, None);
        }
    }
}

/// Registers like a hook; returns descriptors that must stay open.
pub(crate) fn register(path: &Path) -> nix::Result<(OwnedFd, OwnedFd)> {
    let usage = memfd_create(
        c"gcgroup-usage",
        MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
    )?;
    ftruncate(&usage, USAGE_SIZE as i64)?;
    pwrite(&usage, &gcgroup_abi::VERSION.to_ne_bytes(), 8)?;
    pwrite(&usage, &gcgroup_abi::MAGIC.to_ne_bytes(), 0)?;
    // It has some memory on its first device.
    let at = i64::try_from(offset_of!(Usage, devices)).unwrap_or(0);
    pwrite(&usage, &4096_u64.to_ne_bytes(), at)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(usage.as_fd(), FcntlArg::F_ADD_SEALS(seals))?;

    let socket = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let hello = Hello::PLAIN.to_bytes();
    let descriptors = [usage.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<UnixAddr>(
        socket.as_raw_fd(),
        &[IoSlice::new(&hello)],
        &rights,
        MsgFlags::empty(),
        None,
    )?;

    // The control block's descriptor is not received, and so is dropped.
    let mut answer = [0; RegistrationReply::LENGTH];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let reply = RegistrationReply::from_bytes(answer.get(..length).unwrap_or_default());
    reply
        .ok()
        .filter(|reply| reply.status == 0)
        .map(|_| (usage, socket))
        .ok_or(nix::Error::EPROTO)
}
