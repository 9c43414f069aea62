//! Random sequences of every way to allocate and to free: after each call the ledger says what the program's own books
//! say and what the simulated driver really holds; no limit is passed; and every answer is that of the driver to a
//! program without the library, but for a refusal that a limit calls for.
//!
//! `PROPTEST_CASES` says how many sequences.

mod model;

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestError, TestRunner};
use simgpu::Held;
use support::{Mount, Truth};

use crate::calls::{Calls, OUT_OF_MEMORY};
use crate::driver::Dir;
use model::{Block, GONE, Model, Object, Way};

const MIB: u64 = 1 << 20;
/// Variables that hold blocks and handles.
const VARIABLES: usize = 30;
/// Places to map at, and how far apart they are.
const PLACES: usize = 8;
const PLACE: u64 = 32 * MIB;
/// Pools: the device's own, and two that are created.
const POOLS: usize = 3;
/// What the simulated driver's pools grow by, and so how much is foretold.
const GROWTH: u64 = 32 * MIB;
/// How soon what a stream is to free has been freed.
const SOON: Duration = Duration::from_secs(2);

/// One step. Numbers that choose among what there is are taken modulo how many there are.
#[derive(Debug, Clone)]
enum Step {
    Linear(u64),
    Managed(u64),
    Pitched(u64, u64),
    FromPool { pool: usize, bytes: u64, stream: usize },
    CreatePool(usize),
    DestroyPool(usize),
    Trim(usize, u64),
    Threshold(usize, u64),
    Physical(u64),
    Map(usize, usize),
    Unmap(usize, usize),
    Retain(usize),
    Release(usize),
    Array(u64, u64),
    Array3d(u64, u64, u64),
    Mipmapped(u64, u32),
    Host(u64),
    Register(usize),
    Free(usize),
    FreeTwice(usize),
    FreeWrongly(usize, usize),
    FreeUnknown(u64, usize),
    Nowhere(usize),
    Synchronize(usize),
    SecondContext,
    OtherContext,
    DestroySecondContext,
    Limit(Option<u64>),
}

/// Calls that free something, with the address or handle as their first argument.
const FREEING: &[&str] = &[
    "cuMemFree_v2 {}",
    "cuMemFreeAsync {} 0",
    "cuMemFreeHost {}",
    "cuMemHostUnregister {}",
    "cuArrayDestroy {}",
    "cuMipmappedArrayDestroy {}",
    "cuMemRelease {}",
    "cuIpcCloseMemHandle {}",
];

/// Allocations without a place for the answer.
const NOWHERE: &[&str] = &[
    "cuMemAlloc_v2 0 4096",
    "cuMemAllocManaged 0 4096 1",
    "cuMemAllocPitch_v2 0 0 4096 2 4",
    "cuMemAllocAsync 0 4096 0",
    "cuMemAllocFromPoolAsync 0 4096 0 0",
    "cuMemCreate 0 2097152 &props 0",
    "cuMemCreate &nothing 2097152 0 0",
    "cuArrayCreate_v2 0 &flat",
    "cuArrayCreate_v2 &nothing 0",
    "cuMipmappedArrayCreate 0 &deep 1",
    "cuMemHostAlloc 0 4096 0",
    "cuMemHostRegister_v2 0 4096 0",
    "cuMemPoolCreate 0 &props",
    "cuMemPoolCreate &nothing 0",
];

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 1..4096_u64,
        3 => 1..40 * MIB,
        1 => Just(0_u64),
        1 => (1_u64..20).prop_map(|number| number * 2 * MIB),
        1 => prop_oneof![Just(u64::MAX), Just(1_u64 << 63), Just(17_u64 << 30)],
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let any = || 0..1000_usize;
    let allocate = prop_oneof![
        2 => size().prop_map(Step::Linear),
        1 => size().prop_map(Step::Managed),
        1 => (size(), 0..200_u64).prop_map(|(width, rows)| Step::Pitched(width, rows)),
        3 => (any(), size(), any()).prop_map(|(pool, bytes, stream)| Step::FromPool { pool, bytes, stream }),
        2 => (0..12_u64).prop_map(|pages| Step::Physical(pages * 2 * MIB)),
        1 => size().prop_map(Step::Physical),
        1 => (0..5000_u64, 0..2000_u64).prop_map(|(width, height)| Step::Array(width, height)),
        1 => (0..300_u64, 0..300_u64, 0..20_u64).prop_map(|(w, h, d)| Step::Array3d(w, h, d)),
        1 => (0..3000_u64, 0..14_u32).prop_map(|(width, levels)| Step::Mipmapped(width, levels)),
        1 => (0..9 * MIB).prop_map(Step::Host),
        1 => any().prop_map(Step::Register),
    ];
    let free = prop_oneof![
        6 => any().prop_map(Step::Free),
        1 => any().prop_map(Step::FreeTwice),
        2 => (any(), any()).prop_map(|(block, how)| Step::FreeWrongly(block, how)),
        1 => (prop::num::u64::ANY, any()).prop_map(|(address, how)| Step::FreeUnknown(address, how)),
        1 => (0..FREEING.len()).prop_map(|how| Step::FreeUnknown(0, how)),
        1 => any().prop_map(Step::Nowhere),
        3 => any().prop_map(Step::Release),
    ];
    let other = prop_oneof![
        2 => any().prop_map(Step::CreatePool),
        2 => any().prop_map(Step::DestroyPool),
        2 => (any(), prop_oneof![Just(0), 1..100 * MIB]).prop_map(|(pool, keep)| Step::Trim(pool, keep)),
        1 => (any(), 0..100 * MIB).prop_map(|(pool, keep)| Step::Threshold(pool, keep)),
        5 => (any(), any()).prop_map(|(object, place)| Step::Map(object, place)),
        4 => (any(), 1..4_usize).prop_map(|(place, count)| Step::Unmap(place, count)),
        2 => any().prop_map(Step::Retain),
        3 => any().prop_map(Step::Synchronize),
        1 => Just(Step::SecondContext),
        1 => Just(Step::OtherContext),
        1 => Just(Step::DestroySecondContext),
        3 => prop_oneof![Just(None), (0..200 * MIB).prop_map(Some)].prop_map(Step::Limit),
    ];
    prop_oneof![5 => allocate, 4 => free, 3 => other]
}

/// What the simulated driver takes for an array of rows of so many bytes.
fn array_bytes(width: u64, rows: u64) -> u64 {
    let bytes = width.next_multiple_of(32) * rows.max(1);
    bytes.next_multiple_of(64 << 10)
}

/// The same for a square one of two channels of 16 bits, and so many levels.
fn mipmapped_bytes(width: u64, levels: u32) -> u64 {
    let widths = (0..levels).map(|level| (width >> level).max(1));
    widths.map(|width| array_bytes(4 * width, width)).sum()
}

/// A governed program and one without the library, to which the same happens.
struct Twins<'m> {
    governed: Calls,
    bare: Calls,
    dir: Dir<'m>,
    truth: Truth,
    model: Model,
    /// Where the places to map at begin, in each.
    places: [u64; 2],
    has_pool: [bool; POOLS],
    has_second: bool,
    /// Whether the second context is current.
    in_second: bool,
    limit: Option<u64>,
    /// The most that may be charged: the limit, or what was there when it was set.
    most: u64,
    /// A pool may have more than the limit until its stream has come so far.
    is_loose: bool,
    /// That was so since the peak was begun.
    was_loose: bool,
}

impl<'m> Twins<'m> {
    fn new(mount: &'m Mount, other: &Mount) -> Self {
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

    /// Has both do it; they must be answered alike, unless the governed one is refused. `least` is what the call takes
    /// at the least: a refusal is right if that does not fit. Whether the call did what it should.
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

    /// Allocates into a variable that has nothing, if there is one.
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

    /// How a block is freed rightly.
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

    /// The call with each twin's own address of a place.
    fn at(&mut self, place: usize, call: impl Fn(u64) -> String) -> Result<bool, TestCaseError> {
        let texts = self.places.map(|base| call(base + PLACE * place as u64));
        self.each([&texts[0], &texts[1]], None)
    }

    fn go(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Linear(bytes) => {
                self.allocate(Way::Linear, bytes, bytes, |v| {
                    format!("cuMemAlloc_v2 &v{v} {bytes}")
                })?;
            }
            Step::Managed(bytes) => {
                self.allocate(Way::Managed, bytes, bytes, |v| {
                    format!("cuMemAllocManaged &v{v} {bytes} 1")
                })?;
            }
            Step::Pitched(width, rows) => {
                // The driver's padding counts, but nobody knows it before.
                let least = width.saturating_add(511).saturating_mul(rows);
                let made = self.allocate(Way::Linear, 0, least, |v| {
                    format!("cuMemAllocPitch_v2 &v{v} &pitch {width} {rows} 4")
                })?;
                if made.is_some() {
                    let pitch = self.governed.get("pitch");
                    if let Some(last) = self.model.blocks.last_mut() {
                        last.bytes = pitch * rows;
                    }
                }
            }
            Step::FromPool { pool, bytes, stream } => {
                let (pool, stream) = (pool % POOLS, stream % 3);
                let stream = if stream == 0 {
                    "0".to_owned()
                } else {
                    format!("$stream{stream}")
                };
                if !self.has_pool[pool] {
                    return Ok(());
                }
                let least = bytes.saturating_add(GROWTH);
                self.allocate(Way::Pool(pool), bytes, least, |v| match pool {
                    0 => format!("cuMemAllocAsync &v{v} {bytes} {stream}"),
                    _ => format!("cuMemAllocFromPoolAsync &v{v} {bytes} $pool{pool} {stream}"),
                })?;
            }
            Step::CreatePool(pool) => {
                let pool = 1 + pool % (POOLS - 1);
                if !self.has_pool[pool] && self.both(&format!("cuMemPoolCreate &pool{pool} &props"), None)? {
                    self.has_pool[pool] = true;
                }
            }
            Step::DestroyPool(pool) => {
                let pool = pool % POOLS;
                if self.has_pool[pool] && self.both(&format!("cuMemPoolDestroy $pool{pool}"), None)? {
                    self.has_pool[pool] = false;
                    self.model.pool_gone(pool);
                }
            }
            Step::Trim(pool, keep) => {
                let pool = pool % POOLS;
                if self.has_pool[pool] {
                    self.both(&format!("cuMemPoolTrimTo $pool{pool} {keep}"), None)?;
                }
            }
            Step::Threshold(pool, bytes) => {
                let pool = pool % POOLS;
                self.put("threshold", &[(0, 8, bytes)]);
                if self.has_pool[pool] {
                    self.both(&format!("cuMemPoolSetAttribute $pool{pool} 4 &threshold"), None)?;
                }
            }
            Step::Physical(bytes) => {
                let Some(v) = self.model.free_variable(VARIABLES) else {
                    return Ok(());
                };
                let call = format!("cuMemCreate &v{v} {bytes} &props 0");
                if self.both(&call, Some(bytes))? {
                    let (handles, mapped) = (vec![v], Vec::new());
                    self.model.objects.push(Object {
                        bytes,
                        handles,
                        mapped,
                    });
                }
            }
            Step::Map(number, place) => {
                let with_handle = |object: &&Object| !object.handles.is_empty();
                let count = self.model.objects.iter().filter(with_handle).count();
                if count == 0 {
                    return Ok(());
                }
                let place = place % PLACES;
                let object = self.model.objects.iter().filter(with_handle).nth(number % count);
                let (bytes, v) = object
                    .map(|object| (object.bytes, object.handles[0]))
                    .unwrap_or_default();
                let answer = self.at(place, |address| format!("cuMemMap {address} {bytes} 0 $v{v} 0"))?;
                let object = self
                    .model
                    .objects
                    .iter_mut()
                    .find(|object| object.handles.contains(&v));
                if let (true, Some(object)) = (answer, object) {
                    object.mapped.push(place);
                }
            }
            Step::Unmap(place, count) => {
                let place = place % PLACES;
                let count = count.min(PLACES - place);
                let there = |object: &Object| object.mapped.contains(&place);
                let one = self
                    .model
                    .objects
                    .iter()
                    .find(|object| there(object))
                    .map(|object| object.bytes);
                // One mapping as it was made, or whatever lies in several places.
                let bytes = if count == 1 {
                    one.unwrap_or(PLACE)
                } else {
                    PLACE * count as u64
                };
                if self.at(place, |address| format!("cuMemUnmap {address} {bytes}"))? {
                    for object in &mut self.model.objects {
                        object.mapped.retain(|at| !(place..place + count).contains(at));
                    }
                    self.model.sweep();
                }
            }
            Step::Retain(place) => {
                let Some(v) = self.model.free_variable(VARIABLES) else {
                    return Ok(());
                };
                let place = place % PLACES;
                let answer = self.at(place, |address| {
                    format!("cuMemRetainAllocationHandle &v{v} {address}")
                })?;
                let object = self
                    .model
                    .objects
                    .iter_mut()
                    .find(|object| object.mapped.contains(&place));
                prop_assert_eq!(answer, object.is_some());
                if let Some(object) = object {
                    object.handles.push(v);
                }
            }
            Step::Release(number) => {
                let handles = self
                    .model
                    .objects
                    .iter()
                    .flat_map(|object| object.handles.iter().copied());
                let handles: Vec<usize> = handles.collect();
                if handles.is_empty() {
                    return Ok(());
                }
                let v = handles[number % handles.len()];
                if self.both(&format!("cuMemRelease $v{v}"), None)? {
                    for object in &mut self.model.objects {
                        object.handles.retain(|other| *other != v);
                    }
                    self.model.sweep();
                }
            }
            Step::Array(width, height) => {
                self.put("flat", &[(0, 8, width), (8, 8, height), (16, 4, 1), (20, 4, 1)]);
                self.array(Way::Array, array_bytes(width, height), |v| {
                    format!("cuArrayCreate_v2 &v{v} &flat")
                })?;
            }
            Step::Array3d(width, height, depth) => {
                let words = [
                    (0, 8, width),
                    (8, 8, height),
                    (16, 8, depth),
                    (24, 4, 0x20),
                    (28, 4, 4),
                    (32, 4, 0),
                ];
                self.put("deep", &words);
                self.array(
                    Way::Array,
                    array_bytes(16 * width, height.max(1) * depth.max(1)),
                    |v| format!("cuArray3DCreate_v2 &v{v} &deep"),
                )?;
            }
            Step::Mipmapped(width, levels) => {
                let words = [
                    (0, 8, width),
                    (8, 8, width),
                    (16, 8, 0),
                    (24, 4, 2),
                    (28, 4, 2),
                    (32, 4, 0),
                ];
                self.put("deep", &words);
                self.array(Way::Mipmapped, mipmapped_bytes(width, levels), |v| {
                    format!("cuMipmappedArrayCreate &v{v} &deep {levels}")
                })?;
            }
            Step::Host(bytes) => {
                self.allocate(Way::Host, bytes, u64::MAX, |v| {
                    format!("cuMemHostAlloc &v{v} {bytes} 0")
                })?;
            }
            Step::Register(bytes) => {
                let bytes = 1 + bytes as u64 % 512;
                self.allocate(Way::Registered, bytes, u64::MAX, |v| {
                    format!("cuMemHostRegister_v2 &v{v} {bytes} 0")
                })?;
            }
            Step::Free(number) => self.free(number, Self::freeing)?,
            Step::FreeTwice(number) => {
                let count = self.model.blocks.len();
                if count != 0 {
                    let call = Self::freeing(self.model.blocks[number % count]);
                    self.free(number, Self::freeing)?;
                    self.both(&call, None)?;
                }
            }
            Step::FreeWrongly(number, how) => {
                self.free(number, |block| {
                    let sigil = if block.way == Way::Registered { '&' } else { '$' };
                    FREEING[how % FREEING.len()].replace("{}", &format!("{sigil}v{}", block.variable))
                })?;
                // What a stream is to free, and is no pool's, is charged until somebody waits for the stream.
                self.both("cuStreamSynchronize 0", None)?;
            }
            Step::FreeUnknown(address, how) => {
                let call = FREEING[how % FREEING.len()].replace("{}", &address.to_string());
                self.both(&call, None)?;
            }
            Step::Nowhere(which) => {
                let words = [(0, 8, 64), (8, 8, 64), (16, 4, 1), (20, 4, 1)];
                self.put("flat", &words);
                self.both(NOWHERE[which % NOWHERE.len()], Some(GROWTH))?;
            }
            Step::Synchronize(which) => {
                let call = [
                    "cuCtxSynchronize",
                    "cuStreamSynchronize 0",
                    "cuStreamSynchronize $stream1",
                ];
                self.both(call[which % 3], None)?;
                self.is_loose &= which % 3 != 0;
            }
            Step::SecondContext => {
                if !self.has_second && self.both("cuCtxCreate_v2 &second 0 0", None)? {
                    (self.has_second, self.in_second) = (true, true);
                }
            }
            Step::OtherContext => {
                let to_second = self.has_second && !self.in_second;
                let name = if to_second { "second" } else { "context" };
                self.both(&format!("cuCtxSetCurrent ${name}"), None)?;
                self.in_second = to_second;
            }
            Step::DestroySecondContext => {
                if self.has_second {
                    self.both("cuCtxDestroy_v2 $second", None)?;
                    self.both("cuCtxSetCurrent $context", None)?;
                    (self.has_second, self.in_second) = (false, false);
                    self.model.second_context_gone();
                }
            }
            Step::Limit(limit) => {
                let current = self.dir.number("memory.current");
                let text = limit.map_or("max".to_owned(), |limit| limit.to_string());
                self.dir.write("memory.limit", text);
                self.dir.write("memory.peak", 0);
                self.limit = limit;
                self.was_loose = self.is_loose;
                self.most = limit.map_or(u64::MAX, |limit| limit.max(current));
            }
        }
        Ok(())
    }

    /// What the files say, what the books say, and what is.
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

    fn check(&self) -> Result<(), TestCaseError> {
        // What streams are to free they free in their own time.
        let begin = Instant::now();
        let mut wrong = self.told();
        loop {
            // What a pool reserves that is destroyed and still in use, nobody can ask any more: it stays charged.
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
            peak <= self.most || self.was_loose,
            "{peak} was charged, {} allowed",
            self.most
        );
        Ok(())
    }
}

#[test]
fn the_ledger_is_the_truth_after_every_call() {
    // Each twin has a GPU to itself.
    let (mount, other) = (Mount::new(), Mount::new());
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|text| text.parse().ok());
    let mut runner = TestRunner::new(Cases {
        cases: cases.unwrap_or(24),
        // A sequence that fails may take its time over it.
        max_shrink_iters: 25,
        failure_persistence: None,
        ..Cases::default()
    });
    let steps = prop::collection::vec(step(), 1..80);
    let outcome = runner.run(&steps, |steps| {
        let mut twins = Twins::new(&mount, &other);
        for (number, step) in steps.iter().enumerate() {
            twins.go(step)?;
            let checked = twins.check();
            prop_assert!(checked.is_ok(), "after step {number}, {step:?}: {checked:?}");
        }
        Ok(())
    });
    match outcome {
        Err(TestError::Fail(why, steps)) => {
            let steps: String = steps.iter().map(|step| format!("    {step:?}\n")).collect();
            panic!("\n{steps}{why}");
        }
        other => other.expect("the sequences can be made"),
    }
}
