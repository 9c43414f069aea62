//! The atomics of the models in `hook/abi/models`: loom's, with what loom leaves out. Built with `--cfg loom` only.
//!
//! * A zero-filled atomic holds zero, as in shared memory. The loom object behind it is made at the first access, which
//!   must come before the model starts its threads.
//! * loom takes a `SeqCst` access for an `AcqRel` one. Here a `SeqCst` store also moves a hidden counter of its location, and
//!   a `SeqCst` load reads the newest value of that counter first. So a `SeqCst` load reads no value that is older than the
//!   last `SeqCst` store before it, and that is all that the two share: neither orders accesses to other locations.
//!   `SeqCst` accesses and `SeqCst` fences are not ordered with each other, which C11 does in part: code that needs that
//!   fails in a model.
//! * loom remembers the last access to an atomic only, so it does not see that a store races with another thread's load if
//!   the storing thread has loaded the word itself since (tokio-rs/loom, issues 166 and 392), and it does not try orders of
//!   fences. Here each access and each fence first notifies a condition variable on which no thread waits: that orders
//!   nothing, and loom tries every order of it.
//! * Every access and fence with an ordering is a site, named by its place in the source. [`weaken`] gives one site a weaker
//!   ordering, so a model can be asked whether it notices.

use std::boxed::Box;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::vec::Vec;

pub use core::sync::atomic::Ordering;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// What a site does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    Load,
    Store,
    /// An atomic read-modify-write.
    Update,
    Fence,
}

/// A place in the source that accesses an atomic or fences.
pub type Site = &'static Location<'static>;

std::thread_local! {
    static SITES: RefCell<BTreeMap<Site, (Access, Ordering)>> = const { RefCell::new(BTreeMap::new()) };
    static FENCES: RefCell<Option<Rc<loom::sync::Condvar>>> = const { RefCell::new(None) };
    static WEAKENED: Cell<Option<(Site, Ordering)>> = const { Cell::new(None) };
}

impl Access {
    /// The orderings that are weaker, strongest first. A fence that is `Relaxed` is none.
    #[must_use]
    pub fn weaker(self, ordering: Ordering) -> Vec<Ordering> {
        let all: &[Ordering] = match self {
            Self::Load => &[SeqCst, Acquire, Relaxed],
            Self::Store => &[SeqCst, Release, Relaxed],
            Self::Update | Self::Fence => &[SeqCst, AcqRel, Acquire, Release, Relaxed],
        };
        let below = all.iter().skip_while(|one| **one != ordering).skip(1);
        // Neither of the two halves of `AcqRel` is weaker than the other.
        let is_weaker = |one: &&Ordering| ordering != Acquire || **one != Release;
        below.copied().filter(|one| is_weaker(&one)).collect()
    }
}

/// The sites that the calling thread's models have passed, but for those that are `Relaxed`.
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

/// Runs a model once. Each run begins here.
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
            /// Counts the `SeqCst` stores, each after it was made.
            published: loom::sync::atomic::AtomicU32,
            /// Notified before each access.
            turn: loom::sync::Condvar,
        }

        /// As in [`core::sync::atomic`].
        pub struct $name {
            cells: UnsafeCell<Option<Box<$cells>>>,
            first: $int,
        }

        // SAFETY: loom runs one thread at a time, and changes threads in its own operations only, during which nothing
        // writes the cell.
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
                // SAFETY: no thread of a model runs beside this one, and the box is never replaced.
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
            /// The value that is there instead.
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

            /// Does not fail by chance: a loop that tries again would have no end.
            ///
            /// # Errors
            /// The value that is there instead.
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
