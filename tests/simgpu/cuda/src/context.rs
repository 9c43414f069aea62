//! Contexts: the current one of each thread, and the objects that belong to them.

mod calls;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use simgpu::{Engine, StreamKind};

use crate::abi::{CUcontext, CUdevice, CUerror, CUresult, CUstream};
use crate::call::Call;
use crate::cost::Charged;
use crate::error::{
    CONTEXT_ALREADY_IN_USE, CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_HANDLE, STREAM_DETACHED,
};
use crate::price::Price;
use crate::process::Process;
use crate::stream::Stream;

pub(crate) use calls::*;

/// A context.
pub(crate) struct Context {
    pub(crate) handle: CUcontext,
    /// Device number in the process.
    pub(crate) device: CUdevice,
    /// Device index on the machine.
    pub(crate) index: usize,
    pub(crate) engine: &'static Engine,
    is_primary: bool,
    /// For a green context: the primary context that it belongs to.
    primary: Option<Arc<Context>>,
    /// All green contexts ever created from this one.
    parts: Mutex<Vec<CUcontext>>,
    /// Thread to which a green context is current, 0 for none: the documentation allows one at a time, and
    /// this driver refuses a second one.
    user: AtomicU64,
    /// Whether it has default streams; only some green contexts have none.
    has_default: bool,
    pub(crate) flags: AtomicU32,
    api_version: u32,
    is_alive: AtomicBool,
    /// A device-side fault, returned by every later call in the context; 0 is none.
    fault: AtomicU32,
    limits: [AtomicU64; 11],
    pub(crate) legacy: Arc<Stream>,
    per_thread: Mutex<HashMap<u64, Arc<Stream>>>,
    /// Stream of graph nodes that belong to this context but were launched on another device's stream.
    nodes: OnceLock<Stream>,
    /// Contexts of other devices whose memory this context may access.
    peers: Mutex<Vec<CUcontext>>,
    /// Device memory that the context takes until it is destroyed.
    cost: Mutex<Option<Charged>>,
    /// Device memory of stacks, heaps and buffers that are larger than in a new context, by `CUlimit`.
    buffers: Mutex<HashMap<u32, Charged>>,
}

// Neither has a destructor, so that both work even while other thread-locals are destroyed.
thread_local! {
    static STACK: RefCell<ManuallyDrop<Vec<Arc<Context>>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// Limits in a new context, by `CUlimit`; 0: not supported.
const LIMITS: [u64; 11] = [1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0, 0, 0, 0];

/// Threads that the simulated card can have at once, each with a stack.
const RESIDENT_THREADS: u64 = 132 * 2048;

const STREAM_NON_BLOCKING: u32 = 1;

impl Context {
    pub(crate) fn make(
        process: &'static Process,
        device: CUdevice,
        flags: u32,
        is_primary: bool,
    ) -> Result<Arc<Context>, CUerror> {
        let one = process.device(device)?;
        Price::Context.wait(1);
        let cost = Charged::context(process, one.index)?;
        process.member.count_context(one.index, 1);
        let context = Context::new(process, one.engine, device, one.index);
        Ok(Context {
            flags: AtomicU32::new(flags),
            is_primary,
            cost: Mutex::new(Some(cost)),
            ..context
        }
        .enter(process))
    }

    /// Creates the context of a green context: it has its own streams, and shares the rest with its primary
    /// context.
    pub(crate) fn make_part(
        process: &'static Process,
        primary: &Arc<Context>,
        has_default: bool,
    ) -> Result<Arc<Context>, CUerror> {
        let cost = Charged::green(process, primary.index)?;
        let part = Context::new(process, primary.engine, primary.device, primary.index);
        primary.parts.lock().push(part.handle);
        Ok(Context {
            primary: Some(Arc::clone(primary)),
            has_default,
            cost: Mutex::new(Some(cost)),
            ..part
        }
        .enter(process))
    }

    fn new(process: &Process, engine: &'static Engine, device: CUdevice, index: usize) -> Context {
        let handle = process.contexts.reserve();
        Context {
            handle,
            device,
            index,
            engine,
            is_primary: false,
            primary: None,
            parts: Mutex::default(),
            user: AtomicU64::new(0),
            has_default: true,
            flags: AtomicU32::new(0),
            api_version: 3020,
            is_alive: AtomicBool::new(true),
            fault: AtomicU32::new(0),
            limits: LIMITS.map(AtomicU64::new),
            legacy: Arc::new(Stream::open(handle, engine, StreamKind::Legacy, 0, 0)),
            per_thread: Mutex::default(),
            nodes: OnceLock::new(),
            peers: Mutex::default(),
            cost: Mutex::default(),
            buffers: Mutex::default(),
        }
    }

    fn enter(self, process: &Process) -> Arc<Context> {
        let context = Arc::new(self);
        process.contexts.insert_at(context.handle, Arc::clone(&context));
        context
    }

    /// Destroys the context and everything it owns.
    pub(crate) fn destroy(&self, process: &'static Process) {
        if !self.is_alive.swap(false, Acquire) {
            return;
        }
        for part in self.parts.lock().iter() {
            self.engine.drop_domain(*part as u64);
            process.streams.remove_all(|stream| stream.context == *part);
            if let Ok(part) = process.contexts.remove(*part, INVALID_CONTEXT) {
                part.is_alive.store(false, Release);
                part.cost.lock().take();
            }
        }
        self.engine.drop_domain(self.domain());
        self.wait();
        process.mipmaps.remove_all(|mipmap| mipmap.context == self.handle);
        process.arrays.remove_all(|array| array.context == self.handle);
        crate::ipc::close_all_of(process, self.handle);
        crate::memory::free_all_of(process, self.domain());
        process.streams.remove_all(|stream| stream.context == self.handle);
        process.events.remove_all(|event| event.context == self.handle);
        process.modules.remove_all(|module| module.context == self.handle);
        process
            .functions
            .remove_all(|function| function.context == self.handle);
        self.cost.lock().take();
        self.buffers.lock().clear();
        process.member.count_context(self.index, -1);
        let _ = process.contexts.remove(self.handle, INVALID_CONTEXT);
    }

    /// Destroys a green context's context. Its streams are detached and finish their work; it owns nothing
    /// else.
    pub(crate) fn end_part(&self, process: &Process) {
        self.is_alive.store(false, Release);
        self.cost.lock().take();
        let _ = process.contexts.remove(self.handle, INVALID_CONTEXT);
    }

    /// Takes or releases the memory for a limit of `value`.
    fn resize(&self, process: &'static Process, limit: u32, value: u64) -> CUresult {
        let each = match limit {
            0 => RESIDENT_THREADS, // CU_LIMIT_STACK_SIZE
            1 | 2 => 1,            // CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_MALLOC_HEAP_SIZE
            _ => return Ok(()),
        };
        let before = LIMITS.get(limit as usize).copied().unwrap_or(0);
        let bytes = value.saturating_sub(before).saturating_mul(each);
        let mut buffers = self.buffers.lock();
        match buffers.get_mut(&limit) {
            Some(buffer) => buffer.resize(bytes)?,
            None => drop(buffers.insert(limit, Charged::new(process, self.index, bytes)?)),
        }
        Ok(())
    }

    /// Returns the engine's domain of the context.
    pub(crate) fn domain(&self) -> u64 {
        self.handle as u64
    }

    /// Returns whether this is a device's primary context.
    pub(crate) fn is_primary(&self) -> bool {
        self.is_primary
    }

    /// Returns the context that owns objects created in this one, except streams: the primary context of a
    /// green context, otherwise itself.
    pub(crate) fn base(&self) -> &Context {
        self.primary.as_deref().unwrap_or(self)
    }

    /// Returns the owner of memory created in [`Self::base`].
    pub(crate) fn owner(&self) -> u64 {
        self.base().domain()
    }

    /// Returns whether the context has not been destroyed.
    pub(crate) fn is_alive(&self) -> bool {
        self.is_alive.load(Acquire)
    }

    /// Returns whether it belongs to a green context.
    pub(crate) fn is_part(&self) -> bool {
        self.primary.is_some()
    }

    /// Returns the context and the green contexts created from it.
    pub(crate) fn family(&self) -> Vec<CUcontext> {
        let mut family = self.parts.lock().clone();
        family.push(self.handle);
        family
    }

    /// Waits for the work of the context and its green contexts.
    pub(crate) fn wait(&self) {
        for context in self.family() {
            self.engine.wait_domain(context as u64);
        }
    }

    /// Records that the context becomes current to the calling thread.
    fn begin_use(&self) -> CUresult {
        if !self.is_part() {
            return Ok(());
        }
        let own = thread();
        match self.user.compare_exchange(0, own, Acquire, Relaxed) {
            Err(user) if user != own => Err(CONTEXT_ALREADY_IN_USE),
            _ => Ok(()),
        }
    }

    /// Records a device-side fault. The first one is kept.
    pub(crate) fn set_fault(&self, error: CUerror) {
        let fault = &self.base().fault;
        let _ = fault.compare_exchange(0, error.0.get(), Release, Relaxed);
    }

    /// Returns the device-side fault as an error, if there was one.
    pub(crate) fn check_fault(&self) -> CUresult {
        match self.base().fault.load(Acquire) {
            0 => Ok(()),
            number => Err(CUerror::new(number)),
        }
    }

    /// Allows access to a peer's memory. Returns whether it was not allowed before.
    pub(crate) fn add_peer(&self, peer: CUcontext) -> bool {
        let mut peers = self.base().peers.lock();
        let is_new = !peers.contains(&peer);
        if is_new {
            peers.push(peer);
        }
        is_new
    }

    /// Revokes access to a peer's memory. Returns whether it was allowed before.
    pub(crate) fn remove_peer(&self, peer: CUcontext) -> bool {
        let mut peers = self.base().peers.lock();
        let before = peers.len();
        peers.retain(|other| *other != peer);
        peers.len() < before
    }

    /// Returns the stream of graph nodes that were launched on another device's stream.
    pub(crate) fn of_nodes(&self) -> &Stream {
        let open = || {
            Stream::open(
                self.handle,
                self.engine,
                StreamKind::NonBlocking,
                0,
                STREAM_NON_BLOCKING,
            )
        };
        self.nodes.get_or_init(open)
    }

    /// Returns the calling thread's default stream.
    pub(crate) fn of_this_thread(&self) -> Arc<Stream> {
        let mut streams = self.per_thread.lock();
        let open = || {
            Arc::new(Stream::open(
                self.handle,
                self.engine,
                StreamKind::Blocking,
                0,
                STREAM_NON_BLOCKING,
            ))
        };
        Arc::clone(streams.entry(thread()).or_insert_with(open))
    }
}

/// Returns a unique number for the calling thread.
pub(crate) fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    THREAD.with(|thread| {
        if thread.get() == 0 {
            thread.set(NEXT.fetch_add(1, Relaxed));
        }
        thread.get()
    })
}

impl Call {
    /// Returns the calling thread's current context.
    pub(crate) fn context(&self) -> Result<Arc<Context>, CUerror> {
        let context = top().ok_or(INVALID_CONTEXT)?;
        if !context.is_alive.load(Relaxed) {
            return Err(CONTEXT_IS_DESTROYED);
        }
        context.check_fault()?;
        Ok(context)
    }

    /// Returns the context with this handle.
    pub(crate) fn context_of(&self, handle: CUcontext) -> Result<Arc<Context>, CUerror> {
        self.process.contexts.get(handle, INVALID_CONTEXT)
    }

    /// Returns the stream with this handle in the current context; small numbers mean default streams.
    pub(crate) fn stream(&self, handle: CUstream) -> Result<Arc<Stream>, CUerror> {
        match handle {
            0..=2 if !self.context()?.has_default => Err(INVALID_HANDLE),
            0 if self.per_thread => Ok(self.context()?.of_this_thread()),
            0 | 1 => Ok(Arc::clone(&self.context()?.legacy)),
            2 => Ok(self.context()?.of_this_thread()),
            _ => {
                let stream = self.process.streams.get(handle, INVALID_HANDLE)?;
                // Contexts other than green ones destroy their streams with them.
                let context = self.process.contexts.get(stream.context, STREAM_DETACHED)?;
                context.check_fault()?;
                Ok(stream)
            }
        }
    }
}

fn top() -> Option<Arc<Context>> {
    STACK.with_borrow(|stack| stack.last().cloned())
}

fn push(context: Arc<Context>) {
    STACK.with_borrow_mut(|stack| stack.push(context));
}

/// Pops the current context.
fn drop_top() -> Option<Arc<Context>> {
    let dropped = STACK.with_borrow_mut(|stack| stack.pop())?;
    let is_left = !STACK.with_borrow(|stack| stack.iter().any(|other| Arc::ptr_eq(other, &dropped)));
    if is_left {
        dropped.user.store(0, Release);
    }
    Some(dropped)
}

/// Replaces the current context; `None` only pops it.
fn replace(context: Option<Arc<Context>>) {
    drop_top();
    context.into_iter().for_each(push);
}
