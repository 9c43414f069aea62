//! Tests that a process under a limit gets what it would get on a card of that size: the same random calls
//! are made on both. An allocation may have another outcome only where less than one growth step of a pool is
//! left, since a pool grows by smaller steps on a card that is nearly full.

use support::{Config, Mount, Truth};

use crate::calls::{Answer, Calls, OUT_OF_MEMORY};
use crate::driver::Dir;
use crate::memory_model::Random;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 256 * MIB;
/// Growth step in bytes of a pool of the simulated driver.
const STEP: u64 = 32 * MIB;
const SLOTS: u64 = 20;

/// A program, on a card of the size of the limit or under the limit.
struct Side {
    calls: Calls,
    truth: Truth,
}

impl Side {
    fn new(mut calls: Calls, mount: &Mount) -> Self {
        calls.put("properties", 0, 4, 1);
        calls.put("properties", 8, 4, 1);
        calls.ok("cuMemPoolCreate &keeping &properties");
        calls.put("threshold", 0, 8, u64::MAX);
        calls.ok("cuMemPoolSetAttribute $keeping 4 &threshold");
        calls.ok("cuStreamCreate &one 1");
        calls.ok("cuStreamCreate &other 1");
        let truth = Truth::of(&mount.simgpu_dir());
        Self { calls, truth }
    }

    fn used(&self) -> u64 {
        self.truth.used(self.calls.pid(), 0)
    }

    /// Returns whether less than a growth step would be left with `bytes` more.
    fn is_nearly_full(&self, bytes: u64) -> bool {
        self.used() + bytes + STEP > LIMIT
    }
}

/// Returns the calls that allocate `bytes` in a slot, the last of which may be refused, and the call that
/// frees.
fn block(random: &mut Random, slot: u64, bytes: u64) -> (Vec<String>, String) {
    let stream = ["$one", "$other"][usize::from(random.below(2) == 0)];
    let (rows, free) = (bytes.div_ceil(1024), format!("cuMemFreeAsync $b{slot} {stream}"));
    let (make, free) = match random.below(8) {
        0 => (
            format!("cuMemAlloc_v2 &b{slot} {bytes}"),
            format!("cuMemFree_v2 $b{slot}"),
        ),
        1 => (
            format!("cuMemAllocPitch_v2 &b{slot} &pitch 1000 {rows} 4"),
            format!("cuMemFree_v2 $b{slot}"),
        ),
        2 => (
            format!("cuMemAllocManaged &b{slot} {bytes} 1"),
            format!("cuMemFree_v2 $b{slot}"),
        ),
        3 | 4 => (format!("cuMemAllocAsync &b{slot} {bytes} {stream}"), free),
        5 => (
            format!("cuMemAllocFromPoolAsync &b{slot} {bytes} $keeping {stream}"),
            free,
        ),
        6 => {
            let pages = bytes.next_multiple_of(2 * MIB);
            (
                format!("cuMemCreate &b{slot} {pages} &properties 0"),
                format!("cuMemRelease $b{slot}"),
            )
        }
        _ => {
            let record = [
                format!("cuStreamBeginCapture_v2 {stream} 0"),
                format!("cuMemAllocAsync &captured {bytes} {stream}"),
                format!("cuMemFreeAsync $captured {stream}"),
                format!("cuStreamEndCapture {stream} &graph"),
                format!("cuGraphInstantiateWithFlags &b{slot} $graph 0"),
                format!("cuGraphLaunch $b{slot} {stream}"),
            ];
            return (record.to_vec(), format!("cuGraphExecDestroy $b{slot}"));
        }
    };
    (vec![make], free)
}

#[test]
fn limit_gives_what_a_card_of_its_size_gives() {
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    let small = Mount::with(
        Config::default()
            .env("SIMGPU_MEMORY", LIMIT)
            .env("SIMGPU_CONTEXT_MEMORY", 0),
    );
    for seed in [0x5eed, 0xfeed_beef, 0xabcdef] {
        let limited = Calls::start(&mount);
        Dir::of(&mount, limited.pid()).write("memory.limit", LIMIT);
        let mut limited = Side::new(limited, &mount);
        let mut card = Side::new(Calls::start_bare(&small), &small);
        let mut random = Random(seed);
        let mut frees: Vec<Option<String>> = (0..SLOTS).map(|_| None).collect();
        let (mut nr_granted, mut nr_refused, mut nr_other) = (0, 0, 0);
        for step in 0..400 {
            let slot = random.below(SLOTS);
            let held = frees
                .get_mut(usize::try_from(slot).expect("a slot"))
                .expect("a slot");
            for side in [&mut limited, &mut card] {
                side.calls.ok("cuCtxSynchronize");
            }
            if let Some(free) = held.take() {
                limited.calls.ok(&free);
                card.calls.ok(&free);
                continue;
            }
            let bytes = 1 + random.below(60 * MIB);
            let (calls, free) = block(&mut random, slot, bytes);
            let [of_limited, of_card] = [&mut limited, &mut card].map(|side: &mut Side| -> Answer {
                let (last, before) = calls.split_last().expect("a call");
                before.iter().for_each(|call| side.calls.ok(call));
                side.calls.call(last)
            });
            let call = calls.last().expect("a call");
            for (answer, side) in [(of_limited, &mut limited), (of_card, &mut card)] {
                assert!([Ok(()), OUT_OF_MEMORY].contains(&answer), "{call}: {answer:?}");
                let is_graph = call.starts_with("cuGraphLaunch");
                if of_limited != of_card {
                    let is_expected = answer.is_ok() || side.is_nearly_full(bytes);
                    assert!(
                        is_expected,
                        "step {step} of {seed:x}: {call} is refused at {}",
                        side.used()
                    );
                }
                // A graph exists although its launch was refused.
                if answer.is_ok() && of_limited != of_card
                    || is_graph && (of_limited, of_card) != (Ok(()), Ok(()))
                {
                    side.calls.ok(&free);
                }
            }
            match (of_limited, of_card) {
                (Ok(()), Ok(())) => {
                    nr_granted += 1;
                    *held = Some(free);
                }
                (Err(_), Err(_)) => nr_refused += 1,
                _ => nr_other += 1,
            }
            limited.calls.ok("cuCtxSynchronize");
            assert!(
                limited.used() <= LIMIT,
                "step {step} of {seed:x}: {call}: {}",
                limited.used()
            );
        }
        println!("{seed:x}: {nr_granted} granted, {nr_refused} refused, {nr_other} differ");
        assert!(
            nr_granted > 100 && nr_refused > 10,
            "{nr_granted} granted, {nr_refused} refused"
        );
    }
}
