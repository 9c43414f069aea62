//! A governed program and one without the library, the models of both, and the conditions they must satisfy.

mod go;

use std::time::{Duration, Instant};

use proptest::prelude::*;
use simgpu::Held;
use support::{Mount, Truth};

use super::model::{Block, GONE, Model, Way};
use super::{GROWTH, PLACE, PLACES, POOLS, VARIABLES};
use crate::calls::{Calls, OUT_OF_MEMORY};
use crate::driver::Dir;

/// Time within which memory freed in stream order is uncharged.
const SOON: Duration = Duration::from_secs(2);

/// A governed program and one without the library, which execute the same steps.
pub(super) struct Twins<'m> {
    governed: Calls,
    bare: Calls,
    dir: Dir<'m>,
    truth: Truth,
    model: Model,
    /// First address to map at, in each program.
    places: [u64; 2],
    has_pool: [bool; POOLS],
    has_second: bool,
    /// Whether the second context is current.
    in_second: bool,
    limit: Option<u64>,
    /// Most bytes that may be charged: the limit, or the charge at the time it was set.
    most: u64,
    /// Whether a pool may exceed the limit until its stream has made that progress.
    is_loose: bool,
    /// Whether `is_loose` was true at any time since the peak was reset.
    was_loose: bool,
    /// Most bytes by which a pool has grown in a call since then. The growth is seen after the call, if free
    /// memory of the pool turns out to be in pieces, and freed if it does not fit.
    most_growth: u64,
}

impl<'m> Twins<'m> {
    pub(super) fn new(mount: &'m Mount, other: &Mount) -> Self {
        let governed = Calls::start(mount);
        let dir = Dir::of(mount, governed.pid());
        let mut twins = Self {
            governed,
            bare: Calls::start_bare(other),
            dir,
            truth: Truth::of(&mount.simgpu_dir()),
            model: Model::default(),
            places: [0; 2],
            has_pool: [true, false, false],
            has_second: false,
            in_second: false,
            limit: None,
            most: u64::MAX,
            is_loose: false,
            was_loose: false,
            most_growth: 0,
        };
        for calls in [&mut twins.governed, &mut twins.bare] {
            // Pinned memory of device 0, for pools and physical memory alike.
            calls.put("props", 0, 4, 1);
            calls.put("props", 8, 4, 1);
            calls.ok("cuStreamCreate &stream1 0");
            calls.ok("cuStreamCreate &stream2 1");
            calls.ok("cuDeviceGetDefaultMemPool &pool0 0");
            calls.ok(&format!(
                "cuMemAddressReserve &places {} 0 0 0",
                PLACE * PLACES as u64
            ));
        }
        twins.places = [twins.governed.get("places"), twins.bare.get("places")];
        twins
    }

    /// Makes both programs execute a call and compares the answers, which must be equal unless the governed
    /// one is refused. A refusal is correct if `least`, a lower bound of the call's charge in bytes, does not
    /// fit. Returns whether the call succeeded.
    fn both(&mut self, call: &str, least: Option<u64>) -> Result<bool, TestCaseError> {
        self.each([call, call], least)
    }

    fn each(&mut self, calls: [&str; 2], least: Option<u64>) -> Result<bool, TestCaseError> {
        let answer = self.governed.call(calls[0]);
        if answer == OUT_OF_MEMORY
            && let (Some(least), Some(limit)) = (least, self.limit)
        {
            let current = self.dir.number("memory.current");
            if current.saturating_add(least) > limit {
                return Ok(false);
            }
        }
        let bare = self.bare.call(calls[1]);
        prop_assert_eq!(answer, bare, "{}", calls[0]);
        Ok(answer.is_ok())
    }

    fn put(&mut self, variable: &str, words: &[(usize, usize, u64)]) {
        for (offset, size, value) in words {
            self.governed.put(variable, *offset, *size, *value);
            self.bare.put(variable, *offset, *size, *value);
        }
    }

    /// Allocates into an unused variable, if there is one.
    fn allocate(
        &mut self,
        way: Way,
        bytes: u64,
        least: u64,
        call: impl Fn(usize) -> String,
    ) -> Result<Option<usize>, TestCaseError> {
        let Some(variable) = self.model.free_variable(VARIABLES) else {
            return Ok(None);
        };
        let is_pool = matches!(way, Way::Pool(_));
        let answer = self.both(&call(variable), Some(least))?;
        if !answer {
            self.is_loose |= is_pool;
            self.was_loose |= is_pool;
            return Ok(None);
        }
        if is_pool {
            self.most_growth = self.most_growth.max(bytes.next_multiple_of(GROWTH));
        }
        self.model.blocks.push(Block {
            variable,
            way,
            bytes,
            is_second: self.in_second,
        });
        Ok(Some(variable))
    }

    fn held(&self, kind: Held) -> u64 {
        self.truth.held(self.governed.pid(), 0, kind)
    }

    fn array(&mut self, way: Way, least: u64, call: impl Fn(usize) -> String) -> Result<(), TestCaseError> {
        let before = self.held(Held::Array);
        if self.allocate(way, 0, least, call)?.is_some() {
            let bytes = self.held(Held::Array) - before;
            if let Some(last) = self.model.blocks.last_mut() {
                last.bytes = bytes;
            }
        }
        Ok(())
    }

    /// Returns the call that frees a block correctly.
    fn freeing(block: Block) -> String {
        let variable = block.variable;
        match block.way {
            Way::Linear | Way::Managed => format!("cuMemFree_v2 $v{variable}"),
            Way::Array => format!("cuArrayDestroy $v{variable}"),
            Way::Mipmapped => format!("cuMipmappedArrayDestroy $v{variable}"),
            Way::Host => format!("cuMemFreeHost $v{variable}"),
            Way::Registered => format!("cuMemHostUnregister &v{variable}"),
            Way::Pool(_) => format!("cuMemFreeAsync $v{variable} 0"),
        }
    }

    fn free(&mut self, number: usize, call: impl FnOnce(Block) -> String) -> Result<(), TestCaseError> {
        let count = self.model.blocks.len();
        if count == 0 {
            return Ok(());
        }
        let block = self.model.blocks[number % count];
        if self.both(&call(block), None)? {
            self.model.blocks.remove(number % count);
        }
        Ok(())
    }

    /// Executes a call with each program's own address of a slot.
    fn at(&mut self, place: usize, call: impl Fn(u64) -> String) -> Result<bool, TestCaseError> {
        let texts = self.places.map(|base| call(base + PLACE * place as u64));
        self.each([&texts[0], &texts[1]], None)
    }

    /// Returns named pairs of the value in the files and the value in the model or the simulated driver.
    fn told(&self) -> Vec<(&'static str, u64, u64)> {
        let stat = |key| self.dir.key("memory.stat", key);
        let model = |way| self.model.bytes(|other| other == way);
        let arrays = self.model.bytes(|way| matches!(way, Way::Array | Way::Mipmapped));
        let host = self.model.bytes(|way| matches!(way, Way::Host | Way::Registered));
        vec![
            ("linear", stat("linear"), self.held(Held::Linear)),
            ("linear by the books", stat("linear"), model(Way::Linear)),
            ("managed", stat("managed"), self.held(Held::Managed)),
            ("managed by the books", stat("managed"), model(Way::Managed)),
            ("array", stat("array"), self.held(Held::Array)),
            ("array by the books", stat("array"), arrays),
            ("vmm", stat("vmm"), self.held(Held::Physical)),
            ("vmm by the books", stat("vmm"), self.model.physical()),
            ("pool", stat("pool"), self.held(Held::Pool)),
            ("host by the books", stat("host"), host),
            (
                "allocations by the books",
                stat("nr_alloc") - stat("nr_free"),
                self.model.live(),
            ),
            ("context", stat("context"), 0),
            (
                "all",
                self.dir.number("memory.current"),
                self.truth.used(self.governed.pid(), 0),
            ),
        ]
    }

    pub(super) fn check(&self) -> Result<(), TestCaseError> {
        // Memory freed in stream order is released with a delay.
        let begin = Instant::now();
        let mut wrong = self.told();
        loop {
            // The reservation of a pool that was destroyed while in use can no longer be queried, so it stays
            // charged.
            let may_exceed = self.model.bytes(|way| way == Way::Pool(GONE)) != 0;
            wrong.retain(|(what, told, is)| {
                told != is && !(may_exceed && ["pool", "all"].contains(what) && told > is)
            });
            if wrong.is_empty() {
                break;
            }
            prop_assert!(begin.elapsed() < SOON, "told and true: {wrong:?}");
            wrong = self.told();
        }
        let (current, peak) = (self.dir.number("memory.current"), self.dir.number("memory.peak"));
        prop_assert!(
            current <= self.most || self.is_loose,
            "{current} charged, {} allowed",
            self.most
        );
        prop_assert!(
            peak <= self.most.saturating_add(self.most_growth) || self.was_loose,
            "{peak} was charged, {} and {} allowed",
            self.most,
            self.most_growth
        );
        Ok(())
    }
}
