//! Atomics for the models in `hook/abi/models`: loom's, with additions. Built with `--cfg loom` only.
//!
//! * A zero-filled atomic holds zero, as in shared memory. Its loom object is created at the first access,
//!   which must precede the start of the model's threads.
//! * loom treats a `SeqCst` access as `AcqRel`. Here a `SeqCst` store also increments a hidden counter of its
//!   location, and a `SeqCst` load reads the newest value of that counter first. So a `SeqCst` load reads no
//!   value older than the last `SeqCst` store before it. Nothing else is added: accesses to other locations
//!   are not ordered, and `SeqCst` accesses and `SeqCst` fences are not ordered with each other, although C11
//!   orders some of them. Code that needs that fails in a model.
//! * loom remembers only the last access to an atomic, so it misses the race of a store with another thread's
//!   load if the storing thread has loaded the word itself since (tokio-rs/loom, issues 166 and 392), and it
//!   does not try all orders of fences. Here each access and each fence first notifies a condition variable
//!   on which no thread waits: this orders nothing, but loom tries every order of it.
//! * Every access and fence with an ordering is a site, named by its place in the source. [`weaken`] gives
//!   one site a weaker ordering, to test whether a model notices.

use std::boxed::Box;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::vec::Vec;

pub use core::sync::atomic::Ordering;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Kind of operation at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    Load,
    Store,
    /// An atomic read-modify-write.
    Update,
    Fence,
}

/// Place in the source of an atomic access or a fence.
pub type Site = &'static Location<'static>;

std::thread_local! {
    static SITES: RefCell<BTreeMap<Site, (Access, Ordering)>> = const { RefCell::new(BTreeMap::new()) };
    static FENCES: RefCell<Option<Rc<loom::sync::Condvar>>> = const { RefCell::new(None) };
    static WEAKENED: Cell<Option<(Site, Ordering)>> = const { Cell::new(None) };
}

impl Access {
    /// Returns the weaker orderings, strongest first. A `Relaxed` fence is no fence.
    #[must_use]
    pub fn weaker(self, ordering: Ordering) -> Vec<Ordering> {
        let all: &[Ordering] = match self {
            Self::Load => &[SeqCst, Acquire, Relaxed],
            Self::Store => &[SeqCst, Release, Relaxed],
            Self::Update | Self::Fence => &[SeqCst, AcqRel, Acquire, Release, Relaxed],
        };
        let below = all.iter().skip_while(|one| **one != ordering).skip(1);
        // Neither half of `AcqRel` is weaker than the other.
        let is_weaker = |one: &&Ordering| ordering != Acquire || **one != Release;
        below.copied().filter(|one| is_weaker(&one)).collect()
    }
}

/// Returns the sites that models of the calling thread have passed, except `Relaxed` ones.
#[must_use]
pub fn sites() -> Vec<(Site, Access, Ordering)> {
    let all = SITES.with_borrow(Clone::clone);
    all.into_iter()
        .map(|(site, (access, ordering))| (site, access, ordering))
        .collect()
}

/// Runs `body` with another ordering at one site.
pub fn weaken<T>(site: Site, ordering: Ordering, body: impl FnOnce() -> T) -> T {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            WEAKENED.set(None);
        }
    }
    WEAKENED.set(Some((site, ordering)));
    let _restore = Restore;
    body()
}

#[track_caller]
fn at_site(access: Access, ordering: Ordering) -> Ordering {
    if ordering == Relaxed {
        return ordering;
    }
    let here = Location::caller();
    SITES.with_borrow_mut(|sites| sites.insert(here, (access, ordering)));
    match WEAKENED.get() {
        Some((site, weaker)) if site == here => weaker,
        _ => ordering,
    }
}

/// Runs a model once; called at the start of each run.
pub fn run(model: impl FnOnce()) {
    FENCES.set(Some(Rc::new(loom::sync::Condvar::new())));
    model();
}

/// See [`core::sync::atomic::fence`].
#[track_caller]
pub fn fence(ordering: Ordering) {
    match at_site(Access::Fence, ordering) {
        Relaxed => {}
        ordering => {
            if let Some(turn) = FENCES.with_borrow(Clone::clone) {
                turn.notify_one();
            }
            loom::sync::atomic::fence(ordering);
        }
    }
}

macro_rules! atomic {
    ($name:ident, $cells:ident, $int:ty) => {
        #[derive(Debug)]
        struct $cells {
            value: loom::sync::atomic::$name,
            /// Number of `SeqCst` stores, incremented after each.
            published: loom::sync::atomic::AtomicU32,
            /// Notified before each access.
            turn: loom::sync::Condvar,
        }

        /// See [`core::sync::atomic`].
        pub struct $name {
            cells: UnsafeCell<Option<Box<$cells>>>,
            first: $int,
        }

        // SAFETY: loom runs one thread at a time and switches threads only in its own operations, during
        // which nothing writes the cell.
        unsafe impl Sync for $name {}

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }

        impl $name {
            #[must_use]
            pub const fn new(first: $int) -> Self {
                Self {
                    cells: UnsafeCell::new(None),
                    first,
                }
            }

            fn cells(&self) -> &$cells {
                let cells = self.cells.get();
                // SAFETY: no other thread of a model runs meanwhile, and the box is never replaced.
                unsafe {
                    if (*cells).is_none() {
                        *cells = Some(Box::new($cells {
                            value: loom::sync::atomic::$name::new(self.first),
                            published: loom::sync::atomic::AtomicU32::new(0),
                            turn: loom::sync::Condvar::new(),
                        }));
                    }
                    (*cells).as_deref().expect("made above")
                }
            }

            fn at_turn(&self) -> &$cells {
                let cells = self.cells();
                cells.turn.notify_one();
                cells
            }

            #[track_caller]
            pub fn load(&self, ordering: Ordering) -> $int {
                let cells = self.at_turn();
                match at_site(Access::Load, ordering) {
                    SeqCst => {
                        cells.published.fetch_add(0, Acquire);
                        cells.value.load(Acquire)
                    }
                    ordering => cells.value.load(ordering),
                }
            }

            #[track_caller]
            pub fn store(&self, value: $int, ordering: Ordering) {
                let cells = self.at_turn();
                match at_site(Access::Store, ordering) {
                    SeqCst => {
                        cells.value.store(value, Release);
                        cells.published.fetch_add(1, Release);
                    }
                    ordering => cells.value.store(value, ordering),
                }
            }

            #[track_caller]
            fn update(
                &self,
                ordering: Ordering,
                body: impl FnOnce(&loom::sync::atomic::$name, Ordering) -> Result<$int, $int>,
            ) -> Result<$int, $int> {
                let cells = self.at_turn();
                match at_site(Access::Update, ordering) {
                    SeqCst => {
                        let before = body(&cells.value, AcqRel);
                        if before.is_ok() {
                            cells.published.fetch_add(1, Release);
                        }
                        before
                    }
                    ordering => body(&cells.value, ordering),
                }
            }

            #[track_caller]
            fn always(
                &self,
                ordering: Ordering,
                body: impl FnOnce(&loom::sync::atomic::$name, Ordering) -> $int,
            ) -> $int {
                let (Ok(before) | Err(before)) =
                    self.update(ordering, |word, ordering| Ok(body(word, ordering)));
                before
            }

            #[track_caller]
            pub fn swap(&self, value: $int, ordering: Ordering) -> $int {
                self.always(ordering, |word, ordering| word.swap(value, ordering))
            }

            #[track_caller]
            pub fn fetch_add(&self, value: $int, ordering: Ordering) -> $int {
                self.always(ordering, |word, ordering| word.fetch_add(value, ordering))
            }

            #[track_caller]
            pub fn fetch_sub(&self, value: $int, ordering: Ordering) -> $int {
                self.always(ordering, |word, ordering| word.fetch_sub(value, ordering))
            }

            #[track_caller]
            pub fn fetch_max(&self, value: $int, ordering: Ordering) -> $int {
                self.always(ordering, |word, ordering| word.fetch_max(value, ordering))
            }

            /// # Errors
            /// The current value, if it differs from `current`.
            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                self.update(success, |word, success| {
                    word.compare_exchange(current, new, success, failure)
                })
            }

            /// Never fails spuriously: a loop that retries would not terminate.
            ///
            /// # Errors
            /// The current value, if it differs from `current`.
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                self.compare_exchange(current, new, success, failure)
            }
        }
    };
}

atomic!(AtomicU32, Cells32, u32);
atomic!(AtomicU64, Cells64, u64);
