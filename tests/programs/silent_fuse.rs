//! A FUSE filesystem that never answers FLUSH (and, with writeback caching, WRITE), and a client that sends
//! its open files to a socket. A process that closes such a file blocks uninterruptibly until the connection
//! is aborted.
//!
//! ```text
//! silent_fuse serve DIR [writeback]          mounts at DIR and serves; prints "ready"
//! silent_fuse send SOCKET FILE NUMBER WHAT   sends NUMBER descriptors of FILE, one per connection;
//!                                            prints "sent"
//! silent_fuse exec SOCKET FILE               registers, and executes another program with FILE open and
//!                                            close-on-exec; prints "ready" before
//! ```
//!
//! The server has no file of its own filesystem open, so killing it always aborts the connection and releases
//! all blocked processes.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use gcgroup_abi::map::USAGE_SIZE;
use gcgroup_abi::message::Hello;
use nix::fcntl::{FcntlArg, FdFlag, SealFlag, fcntl};
use nix::mount::{MsFlags, mount};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, sendmsg, socket,
};
use nix::unistd::ftruncate;

/// Operation codes, from the kernel's `include/uapi/linux/fuse.h`.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

const FUSE_WRITEBACK_CACHE: u32 = 1 << 16;

const PAGE: usize = 4096;

/// Node of the root directory. Each lookup of a name in it returns a new file.
const ROOT: u64 = 1;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", directory] => serve(Path::new(directory), false),
        ["serve", directory, "writeback"] => serve(Path::new(directory), true),
        ["send", socket, file, number, what] => {
            send(Path::new(socket), Path::new(file), number.parse()?, what)
        }
        ["exec", socket, file] => execute(Path::new(socket), Path::new(file)),
        _ => bail!(
            "usage: silent_fuse serve DIR [writeback] | send SOCKET FILE NUMBER WHAT | exec SOCKET FILE"
        ),
    }
}

fn serve(directory: &Path, is_writeback: bool) -> anyhow::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    let mut device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
        device.as_raw_fd()
    );
    mount(
        Some("silent"),
        directory,
        Some("fuse.silent"),
        MsFlags::empty(),
        Some(options.as_str()),
    )?;
    println!("ready");
    io::stdout().flush()?;
    let mut message = vec![0; 1 << 20];
    let mut last = ROOT;
    loop {
        let length = match device.read(&mut message) {
            Ok(length) => length,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOENT)) => continue,
            // Unmounted or aborted.
            Err(_) => return Ok(()),
        };
        let request = message.get(..length).context("the kernel's length")?;
        let word = |at: usize| -> anyhow::Result<u64> {
            let bytes = request.get(at..).and_then(|rest| rest.first_chunk());
            Ok(u64::from_ne_bytes(*bytes.context("a short request")?))
        };
        let operation = u32::try_from(word(0)? >> 32)?;
        let (unique, node) = (word(8)?, word(16)?);
        let answer = match operation {
            FORGET | BATCH_FORGET | INTERRUPT | FLUSH => continue,
            WRITE if is_writeback => continue,
            INIT => Ok(init(is_writeback)),
            LOOKUP => {
                last += 1;
                let entry = [last, 1, 1 << 20, 1 << 20, 0].map(u64::to_ne_bytes).concat();
                Ok([entry, attributes(last)].concat())
            }
            GETATTR | SETATTR => Ok([
                &[1 << 20, 0].map(u64::to_ne_bytes).concat()[..],
                &attributes(node),
            ]
            .concat()),
            OPEN => Ok([7, 0].map(u64::to_ne_bytes).concat()),
            RELEASE => Ok(Vec::new()),
            _ => Err(libc::ENOSYS),
        };
        let (error, body) = answer.map_or_else(|errno| (-errno, Vec::new()), |body| (0, body));
        let length = u32::try_from(16 + body.len())?;
        let reply = [
            &length.to_ne_bytes()[..],
            &error.to_ne_bytes(),
            &unique.to_ne_bytes(),
            &body,
        ]
        .concat();
        // The request may have been interrupted in the meantime.
        let _ = device.write(&reply);
    }
}

/// A `struct fuse_init_out` of protocol 7.31.
fn init(is_writeback: bool) -> Vec<u8> {
    let flags = if is_writeback { FUSE_WRITEBACK_CACHE } else { 0 };
    let mut words = [0_u32; 16];
    words[..4].copy_from_slice(&[7, 31, 0, flags]);
    // max_write; time_gran.
    words[5..7].copy_from_slice(&[1 << 16, 1]);
    words.map(u32::to_ne_bytes).concat()
}

/// A `struct fuse_attr`.
fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = if node != ROOT {
        (0o100_666, PAGE as u64)
    } else {
        (0o40_755, 0)
    };
    let long = [node, size, 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
    let short = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]
        .map(u32::to_ne_bytes)
        .concat();
    [long, short].concat()
}

/// A file whose close(2) is never answered. With writeback caching its last close also waits for a write.
fn open(file: &Path) -> anyhow::Result<File> {
    let mut file = OpenOptions::new().read(true).write(true).open(file)?;
    file.write_all(&[1; PAGE]).or_else(|error| {
        // Without writeback caching the server answers the write with an error.
        (error.raw_os_error() == Some(libc::ENOSYS))
            .then_some(())
            .ok_or(error)
    })?;
    Ok(file)
}

/// Sends, and keeps the connections until standard input ends. This process never closes the file: it is
/// killed or blocks.
fn send(path: &Path, file: &Path, number: usize, what: &str) -> anyhow::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    let packet = match what {
        // A registration with the wrong descriptor.
        "hello" => Hello::PLAIN.to_bytes().to_vec(),
        // A packet that should not carry a descriptor.
        "junk" => b"junk".to_vec(),
        _ => bail!("hello or junk"),
    };
    let mut kept: Vec<(OwnedFd, File)> = Vec::new();
    for n in 0..number {
        // Each a different file: a page under writeback cannot be written again.
        let name = format!("{}-{}-{n}", file.display(), std::process::id());
        let file = open(Path::new(&name))?;
        let connection = connected(path)?;
        // A registration, then packets that the daemon no longer reads. It may have closed the connection
        // after the first.
        for _ in 0..2 {
            let _ = transmit(&connection, &packet, &file);
        }
        kept.push((connection, file));
    }
    println!("sent");
    io::stdout().flush()?;
    let _ = io::stdin().read(&mut [0]);
    Ok(())
}

/// Never returns: the kernel closes the file during the exec of the other program, after the connection.
fn execute(path: &Path, file: &Path) -> anyhow::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    let connection = connected(path)?;
    let usage = memfd_create("usage", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    ftruncate(&usage, i64::try_from(USAGE_SIZE)?)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&usage, FcntlArg::F_ADD_SEALS(seals))?;
    transmit(&connection, &Hello::PLAIN.to_bytes(), &usage)?;
    recv(connection.as_raw_fd(), &mut [0; 64], MsgFlags::empty())?;
    // Descriptors are closed in ascending order, so this one is closed after the connection.
    let file = open(file)?;
    fcntl(&file, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    println!("ready");
    io::stdout().flush()?;
    Err(Command::new("/bin/true").exec().into())
}

fn connected(path: &Path) -> anyhow::Result<OwnedFd> {
    let connection = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    connect(connection.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(connection)
}

fn transmit(connection: &OwnedFd, packet: &[u8], descriptor: &impl AsRawFd) -> nix::Result<()> {
    let descriptors = [descriptor.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let parts = [IoSlice::new(packet)];
    sendmsg::<()>(
        connection.as_raw_fd(),
        &parts,
        &rights,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )
    .map(drop)
}
