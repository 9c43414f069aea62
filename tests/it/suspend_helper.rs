//! Tests the helper process of a suspension by itself.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;

use nix::mount::{MsFlags, mount as attach};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::stat::Mode;
use nix::unistd::{mkfifo, read, write};
use support::{Governed, Mount, artifacts};

/// Requests the state of a process with this pid and start time, and returns the answer.
fn state(daemon: &OwnedFd, process: (i32, u64)) -> String {
    ask(daemon, process);
    answer(daemon)
}

fn ask(daemon: &OwnedFd, (pid, start_time): (i32, u64)) {
    let request = format!(r#"{{"pid":{pid},"start_time":{start_time},"operation":"GetState"}}"#);
    write(daemon, request.as_bytes()).expect("the helper lives");
}

fn answer(daemon: &OwnedFd) -> String {
    let mut answer = [0; 100];
    let length = read(daemon, &mut answer).expect("the helper lives");
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

const RUNNING: &str = r#"{"Ok":"Running"}"#;

#[test]
fn slow_read_of_proc_does_not_pass_for_the_end_of_the_process() {
    let mount = Mount::new();
    let mut command = mount.bare_command(artifacts().load());
    command.arg("obey");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    let stat = format!("/proc/{}/stat", program.pid());
    let text = fs::read_to_string(&stat).expect("proc(5)");
    let start_time = text.split(' ').nth(21).and_then(|word| word.parse().ok());
    let process = (program.pid(), start_time.expect("the name has no blanks"));

    let slow = mount.root().join("stat");
    mkfifo(&slow, Mode::S_IRWXU).expect("the directory takes a file");
    let (daemon, helpers) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .expect("two sockets");
    let mut command = mount.gcgroupfs(&["checkpoint"]);
    let (from, to) = (slow.clone(), stat.clone());
    // SAFETY: these system calls may be made between fork and exec.
    unsafe {
        command.stdin(Stdio::from(helpers)).pre_exec(move || {
            unshare(CloneFlags::CLONE_NEWNS)?;
            let none = None::<&str>;
            attach(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            attach(Some(&from), to.as_str(), none, MsFlags::MS_BIND, none)?;
            Ok(())
        });
    }
    let mut helper = command.spawn().expect("gcgroupfs starts");
    // The command has the helper's end.
    drop(command);
    ask(&daemon, process);
    // Returns when the helper reads.
    let mut file: File = OpenOptions::new()
        .write(true)
        .open(&slow)
        .expect("the helper reads");
    let mut answered = [PollFd::new(daemon.as_fd(), PollFlags::POLLIN)];
    // Twice as long as the daemon itself waits for such a read.
    assert_eq!(poll(&mut answered, 500_u16), Ok(0), "the helper did not wait");
    file.write_all(text.as_bytes()).expect("the helper reads");
    drop(file);
    assert_eq!(answer(&daemon), RUNNING, "it runs");
    assert_eq!(state(&daemon, process), RUNNING, "nothing is read again");
    program.signal(Signal::SIGKILL);
    program.wait();
    assert_eq!(state(&daemon, process), r#"{"Err":1}"#, "it has ended");
    drop(daemon);
    let _ = helper.wait();
}
