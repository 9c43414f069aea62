//! Memory that the driver takes for a context after it was made: modules, libraries, and buffers whose size
//! the program sets. No call tells how much that is. So what the device has less free after a call is charged
//! as an estimate, with what contexts take, and measured like a context.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::{MutexGuard, RwLock};

use super::charged::Charged;
use super::{Contexts, Memory, TURN};
use crate::driver;
use crate::driver::cuda::{CUcontext, CUerror, CUresult};
use crate::driver::interpose::Next;
use crate::driver::thread;
use crate::memory::page_counter::Unsettled;
use crate::program::no_target;
use crate::shared::target::Target;
use crate::sys;

/// How long the refusal of a call that has exceeded a limit is delayed, in times of the call, and at most:
/// meanwhile no thread makes the next one, so such memory is there a tenth of the time.
const REST: u32 = 10;
const LONGEST_REST: Duration = Duration::from_millis(500);

/// Delays the refusal of a call that began then and has exceeded a limit.
pub(super) fn rest(begun: Instant) {
    let rest = (begun.elapsed() * REST).min(LONGEST_REST);
    thread::outside(|| {
        sys::poll([], Some(rest));
    });
}

/// An occasion at which the driver takes memory for a module or library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Occasion {
    Load,
    /// `cuLibraryGetModule` in a context, by number.
    Module(u32),
    /// The first use of a function, kernel or variable in a context, by number.
    Use(u32),
    /// Uses in a context that were refused, although the driver may have loaded it.
    Refused(u32),
}

/// An estimated charge of contexts at an occasion.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Growth {
    bytes: u64,
    /// Bytes by which measurements had lowered the charges of contexts before.
    lowered: u64,
}

impl Growth {
    /// Adds a later one.
    fn add(&mut self, later: Self) {
        let before = self.left(later.lowered);
        *self = Self {
            bytes: before + later.bytes,
            ..later
        };
    }

    /// Returns the bytes that are charged still, whatever measurements have `lowered` until now.
    fn left(&self, lowered: u64) -> u64 {
        self.bytes.saturating_sub(lowered.wrapping_sub(self.lowered))
    }
}

/// Modules and libraries, by handle.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// The charge at each occasion under a limit.
    occasions: RwLock<HashMap<(usize, Occasion), Growth>>,
    /// The library of each kernel, by handle.
    kernels: RwLock<HashMap<usize, usize>>,
}

impl Loaded {
    /// Records that kernels belong to a library.
    pub(crate) fn note_kernels(&self, library: usize, kernels: impl IntoIterator<Item = usize>) {
        let kernels = kernels.into_iter().map(|kernel| (kernel, library));
        self.kernels.write().extend(kernels);
    }

    /// Returns the library of a kernel, or the kernel if that is unknown.
    pub(crate) fn library_of(&self, kernel: usize) -> usize {
        self.kernels.read().get(&kernel).copied().unwrap_or(kernel)
    }

    fn add(&self, object: usize, occasion: Occasion, growth: Growth) {
        let mut occasions = self.occasions.write();
        occasions.entry((object, occasion)).or_default().add(growth);
    }

    /// Removes a module or library, whose handle may be reused. Returns the occasions with what was charged.
    fn remove(&self, object: usize) -> Vec<(Occasion, Growth)> {
        self.kernels.write().retain(|_, library| *library != object);
        let mut occasions = self.occasions.write();
        let gone = occasions.extract_if(|(of, _), _| *of == object);
        gone.map(|((_, occasion), growth)| (occasion, growth)).collect()
    }
}

impl Contexts {
    /// Waits until no other thread takes memory of unknown size, but not longer than [`TURN`] for one of
    /// them: it may have been interrupted for good by one of the program's signal handlers.
    fn turn_to_grow(&self) -> Option<MutexGuard<'_, ()>> {
        loop {
            let before = self.nr_grown.load(Relaxed);
            let turn = self.growing.try_lock_for(TURN);
            if turn.is_some() {
                self.nr_grown.fetch_add(1, Relaxed);
            } else if self.nr_grown.load(Relaxed) != before {
                continue;
            }
            return turn;
        }
    }
}

impl Memory {
    /// Runs a call that loads a module or library, and `undo` if that exceeds a limit; `undo` returns whether
    /// it has unloaded it. `object` returns the handle after the call.
    ///
    /// # Errors
    /// The driver's, or `CUDA_ERROR_OUT_OF_MEMORY` if a limit is exceeded.
    pub(crate) fn load(
        &self,
        next: Next<'_>,
        object: impl FnOnce() -> Option<usize>,
        undo: impl FnOnce() -> bool,
    ) -> CUresult {
        let growth = self.grow_context(next, |_| undo())?;
        if let Some(object) = object() {
            // A module that went with its library or context may have had the handle.
            self.contexts.loaded.remove(object);
            self.contexts.loaded.add(object, Occasion::Load, growth);
        }
        Ok(())
    }

    /// Runs a call that uses a module or library, which the driver may load into the current context at its
    /// first use there. `load` runs after such a call, makes the driver do so, and returns whether it did.
    ///
    /// # Errors
    /// The driver's, or `CUDA_ERROR_OUT_OF_MEMORY` if the first use exceeds a limit.
    pub(crate) fn use_loaded(&self, object: usize, next: Next<'_>, load: impl Fn() -> bool) -> CUresult {
        self.first(object, Occasion::Use, next, load)
    }

    /// Runs a call that returns a library's module in the current context, as
    /// [`use_loaded`](Self::use_loaded).
    ///
    /// # Errors
    /// The driver's, or `CUDA_ERROR_OUT_OF_MEMORY` if the first such call exceeds a limit.
    pub(crate) fn get_module(&self, library: usize, next: Next<'_>) -> CUresult {
        self.first(library, Occasion::Module, next, || true)
    }

    fn first(
        &self,
        object: usize,
        occasion: impl Fn(u32) -> Occasion,
        next: Next<'_>,
        load: impl Fn() -> bool,
    ) -> CUresult {
        if !self.is_limited() {
            return next();
        }
        let Some(Target { context, .. }) = self.known_target()? else {
            return next();
        };
        let (loaded, occasion) = (&self.contexts.loaded, occasion(context));
        if loaded.occasions.read().contains_key(&(object, occasion)) {
            return next();
        }
        let is_loaded = Cell::new(false);
        let loading = || next().inspect(|()| is_loaded.set(load()));
        let keep = |growth| {
            loaded.add(object, Occasion::Refused(context), growth);
            false
        };
        let growth = self.grow_context(&loading, keep)?;
        if is_loaded.get() {
            loaded.add(object, occasion, growth);
        }
        Ok(())
    }

    /// Runs a call that unloads a module or library, and uncharges what was charged for it.
    pub(crate) fn unload(&self, object: usize, next: Next<'_>) -> CUresult {
        // Before the driver's call, after which the handle may be reused at once.
        let gone = self.contexts.loaded.remove(object);
        let result = next();
        if result.is_ok() {
            let context = |occasion| match occasion {
                Occasion::Load => None,
                Occasion::Module(context) | Occasion::Use(context) | Occasion::Refused(context) => {
                    Some(context)
                }
            };
            self.shrink_contexts(
                gone.into_iter()
                    .map(|(occasion, growth)| (context(occasion), growth)),
            );
        } else {
            let back = gone.into_iter();
            back.for_each(|(occasion, growth)| self.contexts.loaded.add(object, occasion, growth));
        }
        result
    }

    /// Runs a call that frees memory of a context.
    pub(crate) fn shrink_context(&self, next: Next<'_>) -> CUresult {
        next().inspect(|()| self.shrink_contexts(None))
    }

    /// Runs a call that takes memory of unknown size for the current context, and `undo` if that exceeds a
    /// limit; `undo` gets what was charged as an estimate and returns whether it is free again. Where limits
    /// leave little, the charge of 0 bytes waits until contexts are measured. Under a limit one thread at a
    /// time makes such a call. Returns what was charged.
    ///
    /// # Errors
    /// The driver's, or `CUDA_ERROR_OUT_OF_MEMORY` if a limit is exceeded before or after the call.
    pub(crate) fn grow_context(
        &self,
        next: Next<'_>,
        undo: impl FnOnce(Growth) -> bool,
    ) -> Result<Growth, CUerror> {
        if !self.is_limited() {
            return next().map(|()| Growth::default());
        }
        let target = self.known_target()?;
        let devices = self.devices_with_contexts(target);
        let within_limits = || {
            devices.iter().try_for_each(|index| {
                let (charge, sums) = self.try_charge(*index, 0)?;
                charge.keep(sums);
                Ok(())
            })
        };
        let _turn = self.contexts.turn_to_grow();
        within_limits()?;
        let begun = Instant::now();
        let unsettled: Vec<_> = devices
            .iter()
            .map(|index| Unsettled::on(self.usage(), *index))
            .collect();
        let before = free_memory();
        next()?;
        let grown = before
            .zip(free_memory())
            .map(|(before, after)| before.saturating_sub(after) as u64);
        let growth = self.estimate_growth(target, grown.unwrap_or(0));
        drop(unsettled);
        self.session.ring();
        if grown.is_none() && self.contexts.wait_again.load(Relaxed) <= sys::now() {
            self.await_sizes();
        }
        within_limits().inspect_err(|_| {
            let context = target.map(|target| target.context);
            let is_undone = undo(growth);
            self.shrink_contexts(is_undone.then_some((context, growth)));
            rest(begun);
        })?;
        Ok(growth)
    }

    /// Returns the current device and context; `None` if there is none.
    ///
    /// # Errors
    /// The driver's, if it does not tell.
    fn known_target(&self) -> Result<Option<Target>, CUerror> {
        let target = self.program.target();
        let mut context = CUcontext::NULL;
        if target.is_none() {
            driver::cuCtxGetCurrent(&mut context)?;
        }
        if context.0.is_null() {
            Ok(target)
        } else {
            Err(no_target())
        }
    }

    /// Returns the slots of the current device and of those with charged contexts.
    fn devices_with_contexts(&self, target: Option<Target>) -> Vec<usize> {
        let all = self.contexts.charged.lock();
        let contexts = all.iter().filter(|charged| !charged.is_shared());
        let mut devices: Vec<_> = contexts.map(|charged| charged.index).collect();
        devices.extend(target.map(|target| target.index));
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// Adds bytes to the charge of the current context, even beyond a limit, and requests measurements.
    /// Returns what was charged.
    fn estimate_growth(&self, target: Option<Target>, bytes: u64) -> Growth {
        let mut all = self.contexts.charged.lock();
        if let Some(target) = target {
            let is_it = |charged: &&mut Charged| charged.context == target.context;
            match all.iter_mut().find(is_it) {
                Some(charged) => {
                    charged.bytes += bytes;
                    charged.estimated += bytes;
                }
                // It could not be charged when it was made.
                None => all.push(Charged {
                    context: target.context,
                    local: target.local,
                    index: target.index,
                    bytes,
                    estimated: bytes,
                    is_asked: true,
                }),
            }
            self.page_counter.charge(target.index, bytes);
            self.show_context(target.index, bytes, bytes);
        }
        self.measure_contexts(&mut all);
        Growth {
            bytes: target.map_or(0, |_| bytes),
            lowered: self.contexts.lowered.load(Relaxed),
        }
    }

    /// Uncharges what contexts were charged for, and requests measurements. The number of the context may be
    /// unknown. What measurements have lowered meanwhile may be uncharged already, unless it is still an
    /// estimate.
    fn shrink_contexts(&self, gone: impl IntoIterator<Item = (Option<u32>, Growth)>) {
        let mut all = self.contexts.charged.lock();
        let lowered = self.contexts.lowered.load(Relaxed);
        for (context, growth) in gone {
            let of_context = |charged: &&mut Charged| {
                !charged.is_shared() && context.is_none_or(|context| charged.context == context)
            };
            let (mut left, mut sure) = (growth.bytes, growth.left(lowered));
            for charged in all.iter_mut().filter(of_context) {
                let less = left.min(charged.estimated.max(sure)).min(charged.bytes);
                sure = sure.saturating_sub(less);
                let estimated = less.min(charged.estimated);
                left -= less;
                charged.bytes -= less;
                charged.estimated -= estimated;
                let _unsettled = Unsettled::on(self.usage(), charged.index);
                self.show_context(charged.index, less.wrapping_neg(), estimated.wrapping_neg());
                self.uncharge(charged.index, less);
            }
        }
        self.measure_contexts(&mut all);
        drop(all);
        self.session.ring();
    }

    /// Requests measurements of all contexts.
    fn measure_contexts(&self, all: &mut [Charged]) {
        let mut devices: Vec<_> = all.iter().map(|charged| charged.index).collect();
        devices.sort_unstable();
        devices.dedup();
        all.iter_mut().for_each(|charged| charged.is_asked = true);
        self.contexts.doubt(all);
        devices.into_iter().for_each(|index| self.ask_size(index, None));
    }
}

/// Returns the bytes that are free on the current device.
fn free_memory() -> Option<usize> {
    let (mut free, mut total) = (0, 0);
    driver::cuMemGetInfo_v2(&mut free, &mut total).ok()?;
    Some(free)
}
