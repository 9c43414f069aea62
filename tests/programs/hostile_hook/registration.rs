//! Registration with the daemon, as the real hook does it.

use std::error::Error;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed};
use std::time::{Duration, Instant};

use gcgroup_abi::map::{CONTROL_SIZE, USAGE_SIZE, control, usage};
use gcgroup_abi::message::{GroupName, Hello, MAX_LENGTH, RegistrationReply, Tag, bare};
use gcgroup_abi::{Control, NO_LIMIT, Usage};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, connect,
    recvmsg, send, sendmsg, socket,
};
use nix::unistd::ftruncate;

use crate::words::number;

/// A registration.
pub(crate) struct Hook {
    pub socket: OwnedFd,
    pub usage: &'static Usage,
    pub control: &'static Control,
    pub hello: Hello,
}

impl Hook {
    /// Registers this process.
    pub(crate) fn register(hello: Hello) -> Result<Self, Box<dyn Error>> {
        let file = memfd_create(
            "gcgroup-usage",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )?;
        ftruncate(&file, i64::try_from(USAGE_SIZE)?)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let map = map(&file, USAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: just mapped, page-aligned, of this size, and never unmapped.
        let usage = unsafe { usage(map) };
        for device in &usage.devices {
            device.memory_granted.store(NO_LIMIT, Relaxed);
            device.swap_granted.store(NO_LIMIT, Relaxed);
        }
        usage.can_swap.store(hello.can_swap, Relaxed);
        usage.publish();

        let path = std::env::var("GCGROUP_SOCKET")?;
        let socket = socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        connect(socket.as_raw_fd(), &UnixAddr::new(path.as_str())?)?;
        let rights = [file.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&rights)];
        let hello_bytes = hello.to_bytes();
        let parts = [IoSlice::new(&hello_bytes)];
        sendmsg::<()>(socket.as_raw_fd(), &parts, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
        let control = reply(&socket)?;
        Ok(Self {
            socket,
            usage,
            control,
            hello,
        })
    }

    /// Registers, again while the daemon asks for that by `EAGAIN`, as a loaded machine makes it do.
    pub(crate) fn register_patiently(hello: Hello) -> Result<Self, Box<dyn Error>> {
        loop {
            match Self::register(hello) {
                Err(error) if is_again(&*error) => {}
                ended => return ended,
            }
        }
    }

    pub(crate) fn ring(&self) {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        // If the socket is full, the daemon has a wake-up pending already.
        let _ = send(self.socket.as_raw_fd(), &bare(Tag::Doorbell), flags);
    }

    /// Rings, and waits until the number of the answer reaches that of the request.
    pub(crate) fn wait_for(&self, answer: &AtomicU32, number: u32) -> Result<(), Box<dyn Error>> {
        self.ring();
        let deadline = Instant::now() + Duration::from_secs(30);
        while answer.load(Acquire).wrapping_sub(number) >= 1 << 31 {
            if Instant::now() > deadline {
                return Err("no answer".into());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

fn is_again(error: &(dyn Error + 'static)) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Receives the daemon's answer, and maps the control block passed with it.
fn reply(socket: &OwnedFd) -> Result<&'static Control, Box<dyn Error>> {
    let mut buffer = [0; MAX_LENGTH];
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let mut space = nix::cmsg_space!([i32; 1]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let (length, mut files) = (received.bytes, Vec::new());
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = message {
            // SAFETY: the kernel has just created these descriptors for this process.
            files.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let answer = RegistrationReply::from_bytes(&buffer[..length]).map_err(|error| format!("{error:?}"))?;
    let errno = io::Error::from_raw_os_error(answer.status.cast_signed());
    let file = files.pop().ok_or(errno)?;
    let map = map(&file, CONTROL_SIZE, libc::PROT_READ)?;
    // SAFETY: just mapped, page-aligned, of this size, and never unmapped; never written.
    Ok(unsafe { control(map) })
}

fn map(file: &OwnedFd, size: usize, protection: i32) -> io::Result<*const u8> {
    // SAFETY: a new mapping of a file of that size.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(map.cast_const().cast())
}

/// Parses the arguments: the settings requested at registration.
pub(crate) fn wishes(arguments: impl Iterator<Item = String>) -> Result<Hello, Box<dyn Error>> {
    let mut hello = Hello::PLAIN;
    for argument in arguments {
        let (name, value) = argument.split_once('=').ok_or("NAME=VALUE")?;
        match name {
            "group" => hello.group = GroupName::new(value).ok_or("too long")?,
            "priority" => hello.priority = value.parse()?,
            "memory_limit" => hello.memory_limit = number(value)?,
            "memory_swap_max" => hello.memory_swap_max = number(value)?,
            "can_swap" => hello.can_swap = value.parse()?,
            _ => return Err(format!("no wish {name}").into()),
        }
    }
    Ok(hello)
}
