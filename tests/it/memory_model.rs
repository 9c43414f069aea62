//! Tests random calls of every kind: after each, the charge equals the device's usage, and no part of it is
//! attributed to a context.

use support::{Config, Mount, Truth, wait_until};

use crate::calls::{Calls, OUT_OF_MEMORY};
use crate::driver::Dir;

const MIB: u64 = 1 << 20;
/// Bytes of a context, and the limit of the process.
const CONTEXT: u64 = 64 * MIB;
const LIMIT: u64 = CONTEXT + 300 * MIB;
/// Keys of `memory.stat` that calls charge directly.
const CHARGED: [&str; 6] = ["linear", "managed", "pool", "vmm", "array", "graph"];
/// Maximum number of live blocks; each has a variable of the program.
const SLOTS: usize = 24;
const STEPS: usize = 150;

/// A reproducible generator of random numbers, sufficient for mixing calls.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Kind of a block, which determines how it is freed.
#[derive(Clone, Copy)]
enum Kind {
    Linear,
    Async,
    Array,
    Mipmap,
    Physical,
    /// Mapped in `range` at the slot's offset; the handle is already released.
    Mapped,
    Graph,
}

struct Model<'m> {
    calls: Calls,
    dir: Dir<'m>,
    truth: Truth,
    random: Random,
    blocks: [Option<(Kind, u64)>; SLOTS],
}

impl<'m> Model<'m> {
    fn start(mount: &'m Mount, seed: u64) -> Self {
        let mut calls = Calls::start(mount);
        let dir = Dir::of(mount, calls.pid());
        wait_until("the context is measured", || {
            dir.key("memory.stat", "context") == CONTEXT
        });
        dir.write("memory.limit", LIMIT);
        calls.put("properties", 0, 4, 1);
        calls.put("properties", 8, 4, 1);
        calls.ok("cuMemPoolCreate &pool &properties");
        calls.ok("cuStreamCreate &stream 1");
        calls.ok(&format!(
            "cuMemAddressReserve &range {} 0 0 0",
            SLOTS as u64 * 64 * MIB
        ));
        Self {
            calls,
            dir,
            truth: Truth::of(&mount.simgpu_dir()),
            random: Random(seed),
            blocks: [None; SLOTS],
        }
    }

    /// Returns the address at which the slot's memory is mapped.
    fn address(&mut self, slot: usize) -> u64 {
        self.calls.get("range") + slot as u64 * 64 * MIB
    }

    fn make(&mut self, slot: usize) {
        let bytes = 1 + self.random.below(40 * MIB);
        let pages = bytes.next_multiple_of(2 * MIB);
        let block = format!("&b{slot}");
        let (kind, call) = match self.random.below(9) {
            0 => (Kind::Linear, format!("cuMemAlloc_v2 {block} {bytes}")),
            1 => (Kind::Linear, format!("cuMemAllocManaged {block} {bytes} 1")),
            2 => (
                Kind::Linear,
                format!("cuMemAllocPitch_v2 {block} &pitch 1000 {} 4", 1 + bytes / 1024),
            ),
            3 => (Kind::Async, format!("cuMemAllocAsync {block} {bytes} $stream")),
            4 => (
                Kind::Async,
                format!("cuMemAllocFromPoolAsync {block} {bytes} $pool $stream"),
            ),
            5 | 6 => {
                let rows = 1 + bytes / 1024;
                for (word, value) in [1024, rows, 0, 1 | 1 << 32].into_iter().enumerate() {
                    self.calls.put("descriptor", 8 * word, 8, value);
                }
                if self.random.below(2) == 0 {
                    (Kind::Array, format!("cuArray3DCreate_v2 {block} &descriptor"))
                } else {
                    (
                        Kind::Mipmap,
                        format!("cuMipmappedArrayCreate {block} &descriptor 3"),
                    )
                }
            }
            7 => (
                Kind::Physical,
                format!("cuMemCreate {block} {pages} &properties 0"),
            ),
            _ => {
                self.calls.ok("cuStreamBeginCapture_v2 $stream 0");
                self.calls
                    .ok(&format!("cuMemAllocAsync &captured {bytes} $stream"));
                self.calls.ok("cuMemFreeAsync $captured $stream");
                self.calls.ok("cuStreamEndCapture $stream &graph");
                self.calls
                    .ok(&format!("cuGraphInstantiateWithFlags {block} $graph 0"));
                self.calls.ok("cuGraphDestroy $graph");
                self.blocks[slot] = Some((Kind::Graph, bytes));
                (Kind::Graph, format!("cuGraphLaunch $b{slot} $stream"))
            }
        };
        match self.calls.call(&call) {
            Ok(()) => self.blocks[slot] = Some((kind, pages)),
            refused => assert_eq!(refused, OUT_OF_MEMORY, "{call}"),
        }
    }

    fn end(&mut self, slot: usize, (kind, bytes): (Kind, u64)) {
        self.blocks[slot] = None;
        let call = match kind {
            Kind::Linear => format!("cuMemFree_v2 $b{slot}"),
            Kind::Async if self.random.below(4) == 0 => format!("cuMemFree_v2 $b{slot}"),
            Kind::Async => format!("cuMemFreeAsync $b{slot} $stream"),
            Kind::Array => format!("cuArrayDestroy $b{slot}"),
            Kind::Mipmap => format!("cuMipmappedArrayDestroy $b{slot}"),
            Kind::Graph => format!("cuGraphExecDestroy $b{slot}"),
            Kind::Physical => {
                if self.random.below(2) == 0 {
                    let address = self.address(slot);
                    self.calls.ok(&format!("cuMemMap {address} {bytes} 0 $b{slot} 0"));
                    self.blocks[slot] = Some((Kind::Mapped, bytes));
                }
                format!("cuMemRelease $b{slot}")
            }
            Kind::Mapped => {
                let address = self.address(slot);
                if self.random.below(3) == 0 {
                    self.calls
                        .ok(&format!("cuMemRetainAllocationHandle &b{slot} {address}"));
                    self.blocks[slot] = Some((Kind::Physical, bytes));
                }
                format!("cuMemUnmap {address} {bytes}")
            }
        };
        self.calls.ok(&call);
    }

    fn step(&mut self) {
        let slot = usize::try_from(self.random.below(SLOTS as u64)).expect("a slot");
        match (self.random.below(12), self.blocks[slot]) {
            (0, _) => self.calls.ok("cuStreamSynchronize $stream"),
            (1, _) => self.calls.ok("cuDeviceGraphMemTrim 0"),
            (2, _) => self.calls.ok("cuMemPoolTrimTo $pool 0"),
            (3, Some((Kind::Graph, _))) => {
                let launched = self.calls.call(&format!("cuGraphLaunch $b{slot} $stream"));
                assert!([Ok(()), OUT_OF_MEMORY].contains(&launched), "{launched:?}");
            }
            (_, Some(block)) => self.end(slot, block),
            (_, None) => self.make(slot),
        }
    }

    /// Compares charge and usage once the stream is idle, because pools and graphs free memory in stream
    /// order.
    fn check(&mut self, step: usize) {
        self.calls.ok("cuStreamSynchronize $stream");
        // All values from one read, because the context is measured at any time.
        let stat = self.dir.read("memory.stat");
        let key = |key: &str| -> u64 {
            let line = stat
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
            line.and_then(|number| number.parse().ok()).expect("a number")
        };
        let charged: u64 = CHARGED.into_iter().map(key).sum();
        let truth = self.truth.used(self.calls.pid(), 0);
        assert_eq!(charged + CONTEXT, truth, "after step {step}: {stat}");
        assert!(truth <= LIMIT, "after step {step}: {stat}");
        assert!(key("context") <= CONTEXT, "after step {step}: {stat}");
    }
}

#[test]
fn charge_equals_device_usage_after_random_calls() {
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", CONTEXT));
    for seed in [0x5eed, 0xfeed_beef] {
        let mut model = Model::start(&mount, seed);
        for step in 0..STEPS {
            model.step();
            model.check(step);
        }
        assert!(model.dir.number("memory.peak") <= LIMIT);
        assert!(
            model.dir.key("memory.events", "oom") > 0,
            "no allocation was refused"
        );
        for slot in 0..SLOTS {
            while let Some(block) = model.blocks[slot] {
                model.end(slot, block);
            }
        }
        model.calls.ok("cuStreamSynchronize $stream");
        model.calls.ok("cuMemPoolDestroy $pool");
        model.calls.ok("cuDeviceGraphMemTrim 0");
        model.check(STEPS);
        wait_until("only the context is charged", || {
            model.dir.number("memory.current") == CONTEXT
        });
    }
}
