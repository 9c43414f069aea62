//! A hook that lies: it registers with the daemon as the real one does, and then stores in its usage block whatever it
//! is told to. It has no GPU. `GCGROUP_SOCKET` names the daemon; arguments are wishes: `group=a/b`, `priority=0`,
//! `memory_limit=BYTES`, `memory_swap_max=BYTES`, `can_swap=1`.
//!
//! Prints `ready`, then reads commands from stdin and answers each with one line. A new command is one row of
//! [`COMMANDS`]; a new word of the block is one name in the lists above [`word`].

use std::error::Error;
use std::ffi::CStr;
use std::io::{self, BufRead as _, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use gcgroup_abi::map::{CONTROL_SIZE, USAGE_SIZE, control, usage};
use gcgroup_abi::message::{GroupName, Hello, MAX_LENGTH, Tag, Welcome, bare};
use gcgroup_abi::{Control, NO_LIMIT, Usage};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, connect,
    recvmsg, send, sendmsg, socket,
};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, ftruncate};

type Answer = Result<String, Box<dyn Error>>;

/// What a command does with its words.
struct Command {
    name: &'static str,
    run: fn(&Hook, &[&str]) -> Answer,
}

const COMMANDS: &[Command] = &[
    // set FIELD INDEX VALUE: stores it, and rings the doorbell.
    Command {
        name: "set",
        run: set,
    },
    // add FIELD INDEX VALUE: adds it (the sum wraps), and rings.
    Command {
        name: "add",
        run: add,
    },
    // toggle FIELD INDEX ONE OTHER TIMES MICROSECONDS: stores one and the other in turn, with a pause and a ring each.
    Command {
        name: "toggle",
        run: toggle,
    },
    // get FIELD INDEX: the word's value. Answers `FIELD VALUE`.
    Command {
        name: "get",
        run: get,
    },
    // control INDEX: the daemon's words of a device that a liar may wait for.
    Command {
        name: "control",
        run: show_control,
    },
    // request INDEX BYTES: asks the groups above for a grant. Answers `granted BYTES`, all that it has, or `refused`.
    Command {
        name: "request",
        run: request,
    },
    // press INDEX BYTES: asks for other processes to make room on the GPU. Answers `relieved` or `refused`.
    Command {
        name: "press",
        run: press,
    },
    // acknowledge INDEX: says that it has given what it was asked for to others, without having done so.
    Command {
        name: "acknowledge",
        run: acknowledge,
    },
    // random SEED STORES: stores values at random places of the block, and rings 64 times on the way.
    Command {
        name: "random",
        run: random,
    },
    // context: has a context on device 0, by the driver alone: NVML lists the process from then on.
    Command {
        name: "context",
        run: context,
    },
    // flood PROCESSES: registers so many children, one after the other; each ends at once. Answers `flooded ACCEPTED`.
    Command {
        name: "flood",
        run: flood,
    },
];

/// A word of a usage block.
enum Word<'a> {
    Long(&'a AtomicU64),
    Short(&'a AtomicU32),
}

impl<'a> From<&'a AtomicU64> for Word<'a> {
    fn from(word: &'a AtomicU64) -> Self {
        Self::Long(word)
    }
}

impl<'a> From<&'a AtomicU32> for Word<'a> {
    fn from(word: &'a AtomicU32) -> Self {
        Self::Short(word)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a liar's number, cut to the word's size"
)]
impl Word<'_> {
    fn load(&self) -> u64 {
        match self {
            Self::Long(word) => word.load(Acquire),
            Self::Short(word) => word.load(Acquire).into(),
        }
    }

    fn store(&self, value: u64) {
        match self {
            Self::Long(word) => word.store(value, Release),
            Self::Short(word) => word.store(value as u32, Release),
        }
    }
}

/// The word of that name, if it is one of these in that part of the block.
macro_rules! named {
    ($name:expr, $part:expr, $($field:ident)*) => {
        match $name {
            $(stringify!($field) => Some(Word::from(&$part.$field)),)*
            _ => None,
        }
    };
}

/// Names a word of the block: of a device, of a thread (`thread.NAME`), of an array of a device (`kinds.3`), or of the
/// process (`process.NAME`). The index is that of the device or of the thread.
fn word<'a>(block: &'a Usage, name: &str, index: &str) -> Result<Word<'a>, Box<dyn Error>> {
    let index: usize = index.parse()?;
    let device = block.devices.get(index);
    let found = match name.split_once('.') {
        None => device.and_then(|device| {
            named!(name, device,
                memory_current memory_peak peak_generation drained_generation nr_alloc nr_free nr_alloc_fail nr_max
                nr_oom nr_ended nr_frozen frozen_usec graph_kernels unsettled swap_supply nr_contexts nr_waiting
                busy_sequence busy_since busy_nsec usage_nsec_before nr_throttled throttled_usec gate_timeouts
                swap_current swap_out_bytes swap_in_bytes nr_swap_out nr_swap_in nr_swap_fail swappable
                reclaim_generation memory_granted grant_wanted grant_request pressure_request pressure_wanted
                memory_overhead_before swap_charged swap_granted swap_wanted swap_request submitted_nsec queued_until pressure_size)
        }),
        Some(("process", name)) => named!(name, block,
            nr_threads memory_elsewhere memory_peak peak_generation progress_generation nr_max nr_oom
            nr_unknown_symbols can_swap asks_to_swap stocks),
        Some(("thread", name)) => block.threads.get(index).and_then(|thread| {
            named!(name, thread, stock device nr_alloc nr_free counted_device unsettled)
        }),
        Some(("exited", what)) => array(device.map(|device| &device.shared_exited[..]), what),
        Some(("kinds", kind)) => array(device.map(|device| &device.kinds[..]), kind),
        Some(_) => None,
    };
    found.ok_or_else(|| format!("no word {name} {index}").into())
}

fn array<'a>(words: Option<&'a [AtomicU64]>, at: &str) -> Option<Word<'a>> {
    Some(words?.get(at.parse::<usize>().ok()?)?.into())
}

/// A number: decimal, `max`, `now` (`CLOCK_MONOTONIC`, nanoseconds), or a power of two (`2^40`).
fn number(text: &str) -> Result<u64, Box<dyn Error>> {
    match text.split_once('^') {
        Some(("2", power)) => Ok(1 << power.parse::<u32>()?.min(63)),
        _ if text == "max" => Ok(u64::MAX),
        _ if text == "now" => Ok(now()),
        _ => Ok(text.parse()?),
    }
}

fn now() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map(Duration::from);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

/// A registration.
struct Hook {
    socket: OwnedFd,
    usage: &'static Usage,
    control: &'static Control,
    hello: Hello,
}

impl Hook {
    /// Registers this process.
    fn register(hello: Hello) -> Result<Self, Box<dyn Error>> {
        let file = memfd_create(
            "gcgroup-usage",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )?;
        ftruncate(&file, i64::try_from(USAGE_SIZE)?)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let map = map(&file, USAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: mapped just now, page-aligned, of that size, and never unmapped.
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
        let control = welcome(&socket)?;
        Ok(Self {
            socket,
            usage,
            control,
            hello,
        })
    }

    fn ring(&self) {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        // If the socket is full, the daemon has been rung already.
        let _ = send(self.socket.as_raw_fd(), &bare(Tag::Doorbell), flags);
    }

    /// Rings, and waits until the answer to a request is as high as its number.
    fn wait_for(&self, answer: &AtomicU32, number: u32) -> Result<(), Box<dyn Error>> {
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

/// Receives the daemon's answer, and maps the control block that comes with it.
fn welcome(socket: &OwnedFd) -> Result<&'static Control, Box<dyn Error>> {
    let mut buffer = [0; MAX_LENGTH];
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let mut space = nix::cmsg_space!([i32; 1]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let (length, mut files) = (received.bytes, Vec::new());
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = message {
            // SAFETY: the kernel has just opened them for this process.
            files.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let answer = Welcome::from_bytes(&buffer[..length]).map_err(|error| format!("{error:?}"))?;
    let file = files.pop().ok_or_else(|| format!("refused: {}", answer.status))?;
    let map = map(&file, CONTROL_SIZE, libc::PROT_READ)?;
    // SAFETY: mapped just now, page-aligned, of that size, and never unmapped; nothing is stored through it.
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

fn set(hook: &Hook, words: &[&str]) -> Answer {
    let [name, index, value] = *words else {
        return Err("three words".into());
    };
    word(hook.usage, name, index)?.store(number(value)?);
    hook.ring();
    Ok("ok".into())
}

fn add(hook: &Hook, words: &[&str]) -> Answer {
    let [name, index, value] = *words else {
        return Err("three words".into());
    };
    let word = word(hook.usage, name, index)?;
    word.store(word.load().wrapping_add(number(value)?));
    hook.ring();
    Ok("ok".into())
}

fn toggle(hook: &Hook, words: &[&str]) -> Answer {
    let [name, index, one, other, times, pause] = *words else {
        return Err("six words".into());
    };
    let word = word(hook.usage, name, index)?;
    for time in 0..number(times)? {
        word.store(number(if time % 2 == 0 { one } else { other })?);
        hook.ring();
        std::thread::sleep(Duration::from_micros(number(pause)?));
    }
    Ok("ok".into())
}

fn get(hook: &Hook, words: &[&str]) -> Answer {
    let [name, index] = *words else {
        return Err("two words".into());
    };
    Ok(format!("{name} {}", word(hook.usage, name, index)?.load()))
}

fn show_control(hook: &Hook, words: &[&str]) -> Answer {
    let [index] = *words else {
        return Err("one word".into());
    };
    let device = hook
        .control
        .devices
        .get(index.parse::<usize>()?)
        .ok_or("no such device")?;
    Ok(format!(
        "gate={} priority={} usage_nsec={} reclaim_generation={} reclaim_bytes={} group_room={}",
        device.gate.load(Relaxed),
        device.priority.load(Relaxed),
        device.usage_nsec.load(Relaxed),
        device.reclaim_generation.load(Relaxed),
        device.reclaim_bytes.load(Relaxed),
        device.group_room.load(Relaxed),
    ))
}

fn request(hook: &Hook, words: &[&str]) -> Answer {
    let [index, bytes] = *words else {
        return Err("two words".into());
    };
    let (index, bytes) = (index.parse::<usize>()?, number(bytes)?);
    let (usage, control) = (&hook.usage.devices[index], &hook.control.devices[index]);
    usage.grant_wanted.store(bytes, Relaxed);
    let number = usage.grant_request.fetch_add(1, Release).wrapping_add(1);
    hook.wait_for(&control.grant_answer, number)?;
    if control.grant_refused.load(Relaxed) == number {
        return Ok("refused".into());
    }
    Ok(format!("granted {}", usage.memory_granted.load(Relaxed)))
}

fn press(hook: &Hook, words: &[&str]) -> Answer {
    let [index, bytes] = *words else {
        return Err("two words".into());
    };
    let (index, bytes) = (index.parse::<usize>()?, number(bytes)?);
    let (usage, control) = (&hook.usage.devices[index], &hook.control.devices[index]);
    usage.pressure_wanted.store(bytes, Relaxed);
    let number = usage.pressure_request.fetch_add(1, Release).wrapping_add(1);
    hook.wait_for(&control.pressure_answer, number)?;
    let is_refused = control.pressure_refused.load(Relaxed) == number;
    Ok(if is_refused { "refused" } else { "relieved" }.into())
}

fn acknowledge(hook: &Hook, words: &[&str]) -> Answer {
    let [index] = *words else {
        return Err("one word".into());
    };
    let index = index.parse::<usize>()?;
    let generation = hook.control.devices[index].reclaim_generation.load(Acquire);
    hook.usage.devices[index]
        .reclaim_generation
        .store(generation, Release);
    hook.ring();
    Ok("ok".into())
}

fn random(hook: &Hook, words: &[&str]) -> Answer {
    let [seed, stores] = *words else {
        return Err("two words".into());
    };
    let (mut state, stores) = (number(seed)?.wrapping_mul(2).wrapping_add(1), number(stores)?);
    // xorshift64*.
    let mut next = move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    // SAFETY: the block is that long, aligned to a page, and consists of atomic words.
    let words = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(hook.usage).cast::<AtomicU64>(), USAGE_SIZE / 8)
    };
    for store in 0..stores {
        // Magic and version stay: a block without them is soon not looked at any more.
        let at = 2 + usize::try_from(next() >> 16).unwrap_or(0) % (words.len() - 2);
        let value = match next() >> 61 {
            0 => 0,
            1 => u64::MAX,
            2 => now(),
            3 | 4 => 1 << (next() >> 58),
            _ => next(),
        };
        words[at].store(value, Relaxed);
        if store % (stores / 64).max(1) == 0 {
            hook.ring();
        }
    }
    hook.ring();
    Ok("ok".into())
}

fn context(_: &Hook, _: &[&str]) -> Answer {
    /// The address of one of the driver's functions.
    fn find(driver: *mut libc::c_void, name: &CStr) -> Result<*mut libc::c_void, Box<dyn Error>> {
        // SAFETY: the library is open, and the name is a string.
        let found = unsafe { libc::dlsym(driver, name.as_ptr()) };
        match found.is_null() {
            true => Err(format!("no {name:?}").into()),
            false => Ok(found),
        }
    }
    type Init = extern "C" fn(u32) -> i32;
    type Create = extern "C" fn(*mut *mut libc::c_void, u32, i32) -> i32;
    // SAFETY: the driver's initialisers may run at any time.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if driver.is_null() {
        return Err("no driver".into());
    }
    // SAFETY: these are the functions' types in cuda.h.
    let (init, create) = unsafe {
        (
            std::mem::transmute::<*mut libc::c_void, Init>(find(driver, c"cuInit")?),
            std::mem::transmute::<*mut libc::c_void, Create>(find(driver, c"cuCtxCreate_v2")?),
        )
    };
    let mut context = std::ptr::null_mut();
    match (init(0), create(&mut context, 0, 0)) {
        (0, 0) => Ok("ok".into()),
        errors => Err(format!("{errors:?}").into()),
    }
}

fn flood(hook: &Hook, words: &[&str]) -> Answer {
    let [times] = *words else {
        return Err("one word".into());
    };
    let mut accepted = 0;
    for _ in 0..number(times)? {
        // SAFETY: the program has no other thread, so the child may do whatever it could.
        match unsafe { fork() }? {
            ForkResult::Child => {
                let is_accepted = Hook::register(hook.hello).is_ok();
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!is_accepted)) };
            }
            ForkResult::Parent { child } => {
                let status = waitpid(child, None)?;
                accepted += u64::from(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)));
            }
        }
    }
    Ok(format!("flooded {accepted}"))
}

/// What it wishes for when it registers.
fn wishes(arguments: impl Iterator<Item = String>) -> Result<Hello, Box<dyn Error>> {
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

fn main() -> Result<(), Box<dyn Error>> {
    let hook = Hook::register(wishes(std::env::args().skip(1))?)?;
    println!("ready");
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        let answer = match COMMANDS.iter().find(|command| command.name == name) {
            Some(command) => (command.run)(&hook, &words),
            None => Err("no such command".into()),
        };
        println!("{}", answer.unwrap_or_else(|error| format!("error {error}")));
    }
    Ok(())
}
