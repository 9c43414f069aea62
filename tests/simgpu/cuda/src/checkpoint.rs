//! Checkpoints of a process, requested by this process or another one: `cuCheckpointProcess*`.
//!
//! Each process has a thread that serves requests on a socket in the machine's directory, one at a time.
//! `cuCheckpointProcessGetRestoreThreadId` names this thread. A caller that is killed does not end the
//! operation that it has requested. A process reads for itself:
//!
//! - `SIMGPU_MPS=1`: it is a client of MPS, so it cannot be locked; the devices say so
//!   (`CU_DEVICE_ATTRIBUTE_MPS_ENABLED`).

use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use simgpu::memory::{Kind, Moved};
use simgpu::shield::Bell;
use simgpu::{Device, Driver, Machine, Quirk, Route, Suspended, config};

use crate::abi::{CUerror, CUresult, In, Out};
use crate::call::{driver, is_null_mode};
use crate::error::{
    ILLEGAL_STATE, INVALID_VALUE, NOT_INITIALIZED, NOT_PERMITTED, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY,
};
use crate::process::{self, Process};

/// `CUprocessState`.
const RUNNING: u32 = 0;
const LOCKED: u32 = 1;
const CHECKPOINTED: u32 = 2;
const CHECKPOINTING: u32 = 4;

/// Operations, as the first word of a request.
const GET_STATE: u32 = 0;
const LOCK: u32 = 1;
const CHECKPOINT: u32 = 2;
const RESTORE: u32 = 3;
const UNLOCK: u32 = 4;
const GET_THREAD: u32 = 5;

/// First version with support of CUDA IPC (R610) and of managed memory (R580), as 1000 major + 10 minor.
const SINCE_IPC: i32 = 13030;
const SINCE_MANAGED: i32 = 13000;

/// First version that restores on other devices, and most of them in one request.
const SINCE_PAIRS: i32 = 13000;
const MOST_PAIRS: u32 = 64;

/// Time between two looks whether the process has become idle.
const PAUSE: Duration = Duration::from_millis(1);

/// Odd while the process is locked: no call begins.
static GATE: Bell = Bell::new();
/// Number of threads in driver calls.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Nesting of this thread's driver calls.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Begins a driver call: waits while the process is locked.
pub(crate) fn enter() {
    if is_null_mode() {
        return;
    }
    while DEPTH.get() == 0 {
        INSIDE.fetch_add(1, SeqCst);
        let seen = GATE.count();
        if seen.is_multiple_of(2) {
            break;
        }
        INSIDE.fetch_sub(1, SeqCst);
        GATE.sleep(seen);
    }
    DEPTH.set(DEPTH.get() + 1);
}

/// Ends a driver call.
pub(crate) fn leave() {
    if DEPTH.get() == 1 {
        INSIDE.fetch_sub(1, SeqCst);
    }
    DEPTH.set(DEPTH.get().saturating_sub(1));
}

/// Contents and accounts that a checkpoint has moved to the host.
struct Image {
    contents: Vec<Moved>,
    held: Suspended,
}

static IMAGE: Mutex<Option<Image>> = Mutex::new(None);

/// Starts the thread that serves requests. Without it, the process cannot be checkpointed.
pub(crate) fn serve(process: &'static Process) {
    let machine = process.member.machine();
    let path = path(machine, process.member.slot(), own_uid());
    // Left by an earlier process in this slot.
    let _ = std::fs::remove_file(&path);
    let Ok(listener) = UnixListener::bind(&path) else {
        return;
    };
    process.member.tell_checkpoints(own_uid());
    simgpu::spawn("simgpu-restore", move || {
        // SAFETY: gettid has no arguments and cannot fail.
        let tid = unsafe { libc::gettid() };
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => drop(serve_one(process, stream, tid)),
                // The program has closed the descriptor.
                Err(_) => return,
            }
        }
    });
}

fn own_uid() -> u32 {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

fn path(machine: &Machine, slot: usize, uid: u32) -> PathBuf {
    machine.directory().join(format!("checkpoint.{slot}.{uid}"))
}

fn serve_one(process: &'static Process, mut stream: UnixStream, tid: i32) -> std::io::Result<()> {
    let mut request = [0; 8];
    stream.read_exact(&mut request)?;
    let [operation, argument] = words(request);
    let pairs = match operation {
        RESTORE => read_pairs(&mut stream, argument)?,
        _ => Vec::new(),
    };
    let result = match operation {
        GET_STATE => Ok(state()),
        LOCK => lock(process, argument),
        CHECKPOINT => checkpoint(process),
        RESTORE => restore(process, &pairs),
        UNLOCK => unlock(),
        GET_THREAD => Ok(tid.unsigned_abs()),
        _ => Err(INVALID_VALUE),
    };
    let answer = match result {
        Ok(value) => [0, value],
        Err(error) => [error.0.get(), 0],
    };
    stream.write_all(&bytes(answer))
}

/// Reads the pairs of a request to restore on other devices.
fn read_pairs(stream: &mut UnixStream, count: u32) -> std::io::Result<Vec<GpuPair>> {
    let mut pairs = Vec::new();
    for _ in 0..count.min(MOST_PAIRS) {
        let mut pair = GpuPair::default();
        stream.read_exact(&mut pair.old)?;
        stream.read_exact(&mut pair.new)?;
        pairs.push(pair);
    }
    Ok(pairs)
}

fn words(bytes: [u8; 8]) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = bytes;
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

fn bytes([low, high]: [u32; 2]) -> [u8; 8] {
    (u64::from(high) << 32 | u64::from(low)).to_le_bytes()
}

fn state() -> u32 {
    if Quirk::Checkpointing.is_on() && config::directory().join("checkpointing").exists() {
        return CHECKPOINTING;
    }
    match (GATE.count() % 2, &*IMAGE.lock()) {
        (0, _) => RUNNING,
        (_, None) => LOCKED,
        (_, Some(_)) => CHECKPOINTED,
    }
}

/// Returns an error unless the process is in this state.
fn check(expected: u32) -> CUresult {
    (state() == expected).then_some(()).ok_or(ILLEGAL_STATE)
}

/// Returns whether the process is a client of MPS.
pub(crate) fn is_mps() -> bool {
    std::env::var("SIMGPU_MPS").is_ok_and(|value| value == "1")
}

fn lock(process: &Process, timeout_ms: u32) -> Result<u32, CUerror> {
    check(RUNNING)?;
    let version = Driver::of_process().cuda_version;
    let has_managed = process.space.has(|block| block.kind == Kind::Managed);
    if is_mps()
        || (version < SINCE_MANAGED && has_managed)
        || (version < SINCE_IPC && process.ipc.lock().is_used())
    {
        return Err(NOT_SUPPORTED);
    }
    GATE.ring();
    let began = Instant::now();
    let timeout = Duration::from_millis(timeout_ms.into());
    while INSIDE.load(SeqCst) > 0 || !is_idle(process) {
        // 0: no timeout.
        if timeout_ms != 0 && began.elapsed() > timeout {
            GATE.ring();
            return Err(NOT_READY);
        }
        thread::sleep(PAUSE);
    }
    Ok(0)
}

fn is_idle(process: &Process) -> bool {
    let contexts = process.contexts.all();
    contexts
        .into_iter()
        .all(|(_, context)| context.engine.is_domain_idle(context.domain()))
}

fn checkpoint(process: &Process) -> Result<u32, CUerror> {
    check(LOCKED)?;
    let image = Image {
        contents: process.space.take_out(),
        held: process.member.suspend(),
    };
    // The bandwidth bounds the move.
    let ns = process
        .member
        .machine()
        .config()
        .copy_ns(Route::ToHost, image.held.bytes());
    thread::sleep(Duration::from_nanos(ns));
    *IMAGE.lock() = Some(image);
    Ok(0)
}

/// Restores the process, on other devices if there are pairs: those are a permutation of all devices, and the
/// two of each pair are of the same chip. Memory that is shared by CUDA IPC stays on its device.
fn restore(process: &Process, pairs: &[GpuPair]) -> Result<u32, CUerror> {
    check(CHECKPOINTED)?;
    let pairs = permutation(process.member.machine(), pairs)?;
    // Other processes count exported memory on the device on which it was made.
    if !pairs.is_empty() && process.ipc.lock().is_used() {
        return Err(NOT_SUPPORTED);
    }
    let mut place = IMAGE.lock();
    let image = place.take().ok_or(ILLEGAL_STATE)?;
    if !process.member.resume_on(&image.held, &pairs) {
        *place = Some(image);
        return Err(OUT_OF_MEMORY);
    }
    drop(place);
    let ns = process
        .member
        .machine()
        .config()
        .copy_ns(Route::ToDevice, image.held.bytes());
    thread::sleep(Duration::from_nanos(ns));
    process.space.put_back(&image.contents);
    Ok(0)
}

/// Returns the indices of the devices of the pairs.
///
/// # Errors
/// * [`INVALID_VALUE`]: they are not a permutation of all devices.
/// * [`NOT_SUPPORTED`]: a device cannot take the other's place, or is divided by MIG.
fn permutation(machine: &Machine, pairs: &[GpuPair]) -> Result<Vec<(usize, usize)>, CUerror> {
    if pairs.is_empty() {
        return Ok(Vec::new());
    }
    let devices: Vec<_> = machine.devices().collect();
    let find = |uuid| devices.iter().find(|device| device.uuid() == uuid);
    let mut found = Vec::new();
    for pair in pairs {
        let (old, new) = (find(pair.old), find(pair.new));
        found.push(old.zip(new).ok_or(INVALID_VALUE)?);
    }
    let indices: Vec<_> = found
        .iter()
        .map(|(old, new)| (old.index(), new.index()))
        .collect();
    let is_once = |index| {
        indices.iter().filter(|(old, _)| *old == index).count() == 1
            && indices.iter().filter(|(_, new)| *new == index).count() == 1
    };
    if found.len() != devices.len() || !(0..devices.len()).all(is_once) {
        return Err(INVALID_VALUE);
    }
    let fits = |(old, new): &(&Device<'_>, &Device<'_>)| {
        old.name() == new.name() && !old.is_divided() && !new.is_divided()
    };
    found.iter().all(fits).then_some(indices).ok_or(NOT_SUPPORTED)
}

fn unlock() -> Result<u32, CUerror> {
    check(LOCKED)?;
    GATE.ring();
    Ok(0)
}

/// Requests an operation from the process with this pid, and returns its value.
fn request(pid: i32, operation: u32, argument: u32) -> Result<u32, CUerror> {
    request_with(pid, &bytes([operation, argument]))
}

fn request_with(pid: i32, message: &[u8]) -> Result<u32, CUerror> {
    let machine = Machine::attached().map_err(|_| NOT_INITIALIZED)?;
    let pid = u32::try_from(pid).map_err(|_| INVALID_VALUE)?;
    let (slot, uid) = machine.checkpoints_of(pid).ok_or(INVALID_VALUE)?;
    let mut stream = UnixStream::connect(path(machine, slot, uid)).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => NOT_PERMITTED,
        _ => INVALID_VALUE,
    })?;
    let mut answer = [0; 8];
    let exchanged = stream
        .write_all(message)
        .and_then(|()| stream.read_exact(&mut answer));
    // The process has ended.
    exchanged.map_err(|_| INVALID_VALUE)?;
    match words(answer) {
        [0, value] => Ok(value),
        [error, _] => Err(CUerror::new(error)),
    }
}

/// `CUcheckpointLockArgs`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LockArgs {
    timeout_ms: u32,
    reserved: [u32; 15],
}

/// `CUcheckpointCheckpointArgs` and `CUcheckpointUnlockArgs`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ReservedArgs {
    reserved: [u64; 8],
}

/// `CUcheckpointRestoreArgs`. Before CUDA 13 all of it is reserved.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RestoreArgs {
    pairs: In<GpuPair>,
    nr_pairs: u32,
    reserved: [u32; 13],
}

/// `CUcheckpointGpuPair`: the UUID of a device at the checkpoint, and of the one that takes its place.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct GpuPair {
    old: [u8; 16],
    new: [u8; 16],
}

const _: () = assert!(size_of::<RestoreArgs>() == 64 && size_of::<GpuPair>() == 32);

/// Restores a process on other devices.
fn restore_on(pid: i32, pairs: &[GpuPair]) -> Result<u32, CUerror> {
    if Driver::of_process().cuda_version < SINCE_PAIRS {
        return Err(INVALID_VALUE);
    }
    let count = u32::try_from(pairs.len()).unwrap_or(u32::MAX);
    if count > MOST_PAIRS {
        return Err(INVALID_VALUE);
    }
    let mut message = bytes([RESTORE, count]).to_vec();
    pairs
        .iter()
        .for_each(|pair| message.extend(pair.old.iter().chain(&pair.new)));
    request_with(pid, &message)
}

driver! {
    early fn cuCheckpointProcessGetState(pid: i32, state: Out<u32>) { state.set(request(pid, GET_STATE, 0)?) }
    early fn cuCheckpointProcessGetRestoreThreadId(pid: i32, tid: Out<i32>) {
        tid.set(request(pid, GET_THREAD, 0)?.cast_signed())
    }
    early fn cuCheckpointProcessLock(pid: i32, args: In<LockArgs>) {
        let args = args.get_if();
        if args.is_some_and(|args| args.reserved != [0; 15]) {
            return Err(INVALID_VALUE);
        }
        request(pid, LOCK, args.map_or(0, |args| args.timeout_ms)).map(drop)
    }
    early fn cuCheckpointProcessCheckpoint(pid: i32, args: In<ReservedArgs>) {
        check_reserved(args)?;
        request(pid, CHECKPOINT, 0).map(drop)
    }
    early fn cuCheckpointProcessRestore(pid: i32, args: In<RestoreArgs>) {
        // There is no persistence mode: the caller keeps the driver initialized.
        process::get()?;
        match args.get_if() {
            Some(args) if args.reserved != [0; 13] || (args.pairs.address() == 0) != (args.nr_pairs == 0) => {
                Err(INVALID_VALUE)
            }
            Some(args) if args.nr_pairs > 0 => restore_on(pid, &args.pairs.list(args.nr_pairs as usize)?).map(drop),
            _ => request(pid, RESTORE, 0).map(drop),
        }
    }
    early fn cuCheckpointProcessUnlock(pid: i32, args: In<ReservedArgs>) {
        check_reserved(args)?;
        request(pid, UNLOCK, 0).map(drop)
    }
}

fn check_reserved(args: In<ReservedArgs>) -> CUresult {
    let is_clear = args.get_if().is_none_or(|args| args.reserved == [0; 8]);
    is_clear.then_some(()).ok_or(INVALID_VALUE)
}
