//! Tests that a process under a limit gets what it would get on a card of that size: the same random calls
//! are made on both. The exceptions:
//!
//! - Where less than one growth step of a pool is left, an allocation may have another outcome, since a pool
//!   grows by smaller steps on a card that is nearly full.
//! - A module, a library, or the growth of a heap or buffer, is charged after the call, by an estimate, so it
//!   may exceed a limit during the call. What is uncharged after the end of a library, heap or buffer is what
//!   the daemon measures: it may be counted for 2 s, and while managed memory is held, for as long.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use simgpu::Held;
use support::{Config, Governed, Mount, Truth, c_program, wait_until};

use crate::calls::{Answer, Calls, OUT_OF_MEMORY};
use crate::driver::Dir;
use crate::memory_model::Random;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 256 * MIB;
/// Growth step in bytes of a pool of the simulated driver.
const STEP: u64 = 32 * MIB;
const SLOTS: u64 = 24;
/// Bytes of a context, and of a module.
const CONTEXT: u64 = 8 * MIB;
const CODE: u64 = 256 << 10;
/// Number of the limit of a context that is its heap, and the size that it has at first.
const HEAP: u32 = 2;
const SMALLEST_HEAP: u64 = 8 * MIB;
const PRINTF: u32 = 1;
const SMALLEST_PRINTF: u64 = MIB;

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
        for at in [0, 4, 8] {
            calls.put("exportable", at, 4, 1);
        }
        calls.put("threshold", 0, 8, u64::MAX);
        calls.ok("cuMemPoolSetAttribute $keeping 4 &threshold");
        calls.fill("code", &image(0));
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
        self.used() + bytes + STEP + SLOTS * CODE > LIMIT
    }

    /// Makes calls, and stores into variables, that cannot fail.
    fn all(&mut self, lines: &[String]) {
        for line in lines {
            match line.starts_with("put ") || line.starts_with("bytes ") {
                true => assert_eq!(self.calls.ask(line), "ok", "{line}"),
                false => self.calls.ok(line),
            }
        }
    }
}

/// Calls that allocate in a slot and free it.
#[derive(Default)]
struct Block {
    before: Vec<String>,
    /// The call that may be refused.
    make: String,
    after: Vec<String>,
    free: Vec<String>,
    bytes: u64,
    is_managed: bool,
}

impl Block {
    /// Returns the most bytes that may be charged after its end: those of a library in each context.
    fn late(&self) -> u64 {
        match self.make.split(' ').next() {
            Some("cuLibraryLoadData") => self.bytes * SLOTS,
            Some("cuCtxSetLimit") => self.bytes,
            _ => 0,
        }
    }
}

impl Block {
    fn new(make: String, free: String, bytes: u64) -> Self {
        Self {
            make,
            free: vec![free],
            bytes,
            ..Self::default()
        }
    }

    /// Marks it as managed memory.
    fn managed(self) -> Self {
        Self {
            is_managed: true,
            ..self
        }
    }
}

/// Returns PTX with a variable of so many bytes in hexadecimal.
fn image(bytes: u64) -> String {
    let text = format!(
        ".version 7.8\n.target sm_75\n.address_size 64\n.visible .global .align 4 .b8 table[{bytes}];\n"
    );
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn block(random: &mut Random, slot: u64) -> Block {
    let bytes = 1 + random.below(60 * MIB);
    let stream = ["$one", "$other"][usize::from(random.below(2) == 0)];
    let (rows, pages) = (bytes.div_ceil(1024), bytes.next_multiple_of(2 * MIB));
    let freed = format!("cuMemFree_v2 $b{slot}");
    let freed_later = format!("cuMemFreeAsync $b{slot} {stream}");
    match random.below(20) {
        0 => Block::new(format!("cuMemAlloc_v2 &b{slot} {bytes}"), freed, bytes),
        1 => Block::new(
            format!("cuMemAllocPitch_v2 &b{slot} &pitch 1000 {rows} 4"),
            freed,
            bytes,
        ),
        2 => Block::new(format!("cuMemAllocManaged &b{slot} {bytes} 1"), freed, bytes).managed(),
        3 | 4 => Block::new(
            format!("cuMemAllocAsync &b{slot} {bytes} {stream}"),
            freed_later,
            bytes,
        ),
        5 => Block::new(
            format!("cuMemAllocFromPoolAsync &b{slot} {bytes} $keeping {stream}"),
            freed_later,
            bytes,
        ),
        6 => Block::new(
            format!("cuMemCreate &b{slot} {pages} &properties 0"),
            format!("cuMemRelease $b{slot}"),
            pages,
        ),
        7 => Block {
            make: format!("cuMemCreate &created {pages} &properties 0"),
            after: vec![
                format!("cuMemAddressReserve &b{slot} {pages} 0 0 0"),
                format!("cuMemMap $b{slot} {pages} 0 $created 0"),
                "cuMemRelease $created".to_owned(),
            ],
            free: vec![
                format!("cuMemUnmap $b{slot} {pages}"),
                format!("cuMemAddressFree $b{slot} {pages}"),
            ],
            bytes: pages,
            ..Block::default()
        },
        8 => Block {
            before: vec![
                "put array 0 8 1000".to_owned(),
                format!("put array 8 8 {}", rows.div_ceil(4)),
                "put array 16 4 32".to_owned(),
                "put array 20 4 1".to_owned(),
            ],
            ..Block::new(
                format!("cuArrayCreate_v2 &b{slot} &array"),
                format!("cuArrayDestroy $b{slot}"),
                bytes,
            )
        },
        9 => Block {
            after: vec!["cuCtxPopCurrent_v2 &popped".to_owned()],
            ..Block::new(
                format!("cuCtxCreate_v2 &b{slot} 0 0"),
                format!("cuCtxDestroy_v2 $b{slot}"),
                CONTEXT,
            )
        },
        10 => Block::new(
            format!("cuModuleLoadData &b{slot} &code"),
            format!("cuModuleUnload $b{slot}"),
            CODE,
        ),
        11 => Block {
            after: vec![
                format!("cuMemExportToShareableHandle &d{slot} $b{slot} 1 0"),
                format!("cuMemImportFromShareableHandle &i{slot} $d{slot} 1"),
            ],
            free: vec![
                format!("cuMemRelease $b{slot}"),
                format!("cuMemRelease $i{slot}"),
                format!("close $d{slot}"),
            ],
            ..Block::new(
                format!("cuMemCreate &b{slot} {pages} &exportable 0"),
                String::new(),
                pages,
            )
        },
        12 => Block::new(
            format!("cuCtxSetLimit {HEAP} {}", SMALLEST_HEAP + bytes / 16),
            format!("cuCtxSetLimit {HEAP} {SMALLEST_HEAP}"),
            bytes / 16,
        ),
        13 => Block {
            before: vec![format!("bytes image {}", image(bytes))],
            ..Block::new(
                format!("cuModuleLoadData &b{slot} &image"),
                format!("cuModuleUnload $b{slot}"),
                CODE + bytes,
            )
        },
        14 => Block {
            before: vec![format!("bytes image {}", image(bytes))],
            after: vec![format!("cuLibraryGetModule &module $b{slot}")],
            ..Block::new(
                format!("cuLibraryLoadData &b{slot} &image 0 0 0 0 0 0"),
                format!("cuLibraryUnload $b{slot}"),
                CODE + bytes,
            )
        },
        15 => Block::new(
            format!("cuCtxSetLimit {PRINTF} {}", SMALLEST_PRINTF + bytes / 8),
            format!("cuCtxSetLimit {PRINTF} {SMALLEST_PRINTF}"),
            bytes / 8,
        ),
        16 => Block {
            after: vec![
                format!("cuMemAdvise $b{slot} {bytes} 3 0"),
                format!("cuMemPrefetchAsync $b{slot} {bytes} 0 {stream}"),
            ],
            ..Block::new(format!("cuMemAllocManaged &b{slot} {bytes} 1"), freed, bytes).managed()
        },
        17 => Block {
            after: vec![format!("cuIpcGetMemHandle &handle $b{slot}")],
            ..Block::new(format!("cuMemAlloc_v2 &b{slot} {bytes}"), freed, bytes)
        },
        18 => Block {
            before: vec![
                "put array 0 8 1000".to_owned(),
                format!("put array 8 8 {}", rows.div_ceil(4)),
                "put array 16 8 0".to_owned(),
                "put array 24 4 32".to_owned(),
                "put array 28 4 1".to_owned(),
                "put array 32 4 0".to_owned(),
            ],
            ..Block::new(
                format!("cuMipmappedArrayCreate &b{slot} &array 4"),
                format!("cuMipmappedArrayDestroy $b{slot}"),
                bytes + bytes / 2,
            )
        },
        _ => Block {
            before: vec![
                format!("cuStreamBeginCapture_v2 {stream} 0"),
                format!("cuMemAllocAsync &captured {bytes} {stream}"),
                format!("cuMemFreeAsync $captured {stream}"),
                format!("cuStreamEndCapture {stream} &graph"),
                format!("cuGraphInstantiateWithFlags &b{slot} $graph 0"),
            ],
            ..Block::new(
                format!("cuGraphLaunch $b{slot} {stream}"),
                format!("cuGraphExecDestroy $b{slot}"),
                bytes,
            )
        },
    }
}

#[test]
fn limit_gives_what_a_card_of_its_size_gives() {
    let config = || {
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", CONTEXT)
            .env("SIMGPU_CODE_SIZE", CODE)
    };
    let mount = Mount::with(config());
    let small = Mount::with(config().env("SIMGPU_MEMORY", LIMIT));
    for seed in [0x5eed, 0xfeed_beef, 0xabcdef] {
        let limited = Calls::start(&mount);
        Dir::of(&mount, limited.pid()).write("memory.limit", LIMIT);
        let mut limited = Side::new(limited, &mount);
        let mut card = Side::new(Calls::start_bare(&small), &small);
        let mut random = Random(seed);
        let mut held: Vec<Option<Block>> = (0..SLOTS).map(|_| None).collect();
        let (mut nr_granted, mut nr_refused, mut nr_other) = (0, 0, 0);
        // Bytes that may still be charged after their end.
        let mut late = 0;
        for step in 0..400 {
            let slot = random.below(SLOTS);
            if !held.iter().flatten().any(|block| block.is_managed) {
                late = 0;
            }
            let held = held
                .get_mut(usize::try_from(slot).expect("a slot"))
                .expect("a slot");
            for side in [&mut limited, &mut card] {
                side.calls.ok("cuCtxSynchronize");
            }
            if let Some(block) = held.take() {
                late += block.late();
                limited.all(&block.free);
                card.all(&block.free);
                continue;
            }
            let block = block(&mut random, slot);
            let call = &block.make;
            let [of_limited, of_card] = [&mut limited, &mut card].map(|side: &mut Side| -> Answer {
                side.all(&block.before);
                side.calls.call(call)
            });
            late += if of_limited.is_ok() { 0 } else { block.late() };
            for (answer, side, late) in [(of_limited, &mut limited, late), (of_card, &mut card, 0)] {
                assert!([Ok(()), OUT_OF_MEMORY].contains(&answer), "{call}: {answer:?}");
                let is_expected =
                    of_limited == of_card || answer.is_ok() || side.is_nearly_full(block.bytes + late);
                assert!(
                    is_expected,
                    "step {step} of {seed:x}: {call} is refused at {}, limited: {of_limited:?}",
                    side.used()
                );
                if answer.is_ok() {
                    side.all(&block.after);
                }
                // A graph exists although its launch was refused.
                let exists = answer.is_ok() || call.starts_with("cuGraphLaunch");
                if exists && (of_limited, of_card) != (Ok(()), Ok(())) {
                    side.all(&block.free);
                }
            }
            match (of_limited, of_card) {
                (Ok(()), Ok(())) => {
                    nr_granted += 1;
                    *held = Some(block);
                }
                (Err(_), Err(_)) => nr_refused += 1,
                _ => nr_other += 1,
            }
            limited.calls.ok("cuCtxSynchronize");
            assert!(
                limited.used() <= LIMIT + SLOTS * CODE,
                "step {step} of {seed:x}: {}",
                limited.used()
            );
        }
        println!("{seed:x}: {nr_granted} granted, {nr_refused} refused, {nr_other} differ");
        assert!(
            nr_granted > 100 && nr_refused + nr_other > 20,
            "{nr_granted} granted, {nr_refused} refused, {nr_other} differ"
        );
    }
}

const THREADS: u64 = 8;
const PAGE: u64 = 2 * MIB;
/// Limit of the threads' test: three times what calls in progress may add.
const ROOMY: u64 = 3 * THREADS * STEP;

/// Bytes that a process has freed, at many times.
struct Watch {
    truth: Truth,
    pid: i32,
    /// Times of `CLOCK_MONOTONIC` in nanoseconds, and bytes that had been freed before.
    freed: Vec<(u64, u64)>,
}

impl Watch {
    fn look(&mut self) {
        let (_, freed) = self.truth.taken_and_freed(self.pid, 0);
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the time");
        if self.freed.last().is_none_or(|(_, last)| *last < freed) {
            let now = Duration::from(now).as_nanos().try_into().expect("nanoseconds");
            self.freed.push((now, freed));
        }
    }

    /// Returns at least the most bytes that the process has held at one moment since that time.
    fn most_since(&self, begun: u64) -> u64 {
        let (taken, _) = self.truth.taken_and_freed(self.pid, 0);
        let before = self.freed.partition_point(|(time, _)| *time <= begun);
        let freed = before.checked_sub(1).map_or(0, |last| self.freed[last].1);
        // An allocation that is just being made may be missing.
        taken - freed + STEP
    }

    /// Returns the bytes that threads in calls may add: a growth step for each, and a page for each context.
    /// A module is no larger than a step.
    fn slack(&self, nr_threads: u64) -> u64 {
        let nr_contexts = self.truth.held(self.pid, 0, Held::Context) / CONTEXT;
        nr_threads * STEP + (1 + nr_contexts) * PAGE
    }
}

/// Kinds of `memory_mix.c`.
const MANAGED: u32 = 1 << 3;
const MODULE: u32 = 1 << 9;

/// A refusal is judged beside calls in progress, and again, with less slack, when it is repeated alone. No
/// modules beside managed memory: by what the device has less each is charged for calls beside it too, and is
/// not measured there.
#[test]
fn threads_exceed_no_limit_and_are_refused_nothing_beyond_their_steps() {
    let page = PAGE.to_string();
    let config = Config::default()
        .env("SIMGPU_CONTEXT_MEMORY", CONTEXT)
        .env("SIMGPU_CODE_SIZE", 0);
    let mount = Mount::with(config.env("SIMGPU_PAGE", &page).arg("--device-page").arg(&page));
    std::fs::create_dir(mount.path().join("team")).expect("the group is made");
    for (is_group, without) in [(false, MODULE), (true, MANAGED)] {
        let mut command = mount.command(c_program("memory_mix.c", &["-pthread", "-ldl"]));
        command
            .args([THREADS.to_string(), "200".to_owned(), (16 << 10).to_string()])
            .arg(without.to_string());
        let mut program = Governed::spawn(command);
        let ready = program.expect("ready ");
        let pid = ready.trim_start_matches("ready ").parse().expect("a pid");
        let dir = Dir::of(&mount, pid);
        if is_group {
            mount.write("team", "memory.limit", &ROOMY.to_string());
            mount.write("team", "gcgroup.procs", &pid.to_string());
        } else {
            dir.write("memory.limit", ROOMY);
        }
        let mut watch = Watch {
            truth: mount.truth(),
            pid,
            freed: Vec::new(),
        };
        program.say("go");
        let (mut nr_crowded, mut least) = (0, u64::MAX);
        let done = loop {
            watch.look();
            let Some(line) = program.line_now() else {
                continue;
            };
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().expect("a number");
            let (lost, slack) = match words[0] {
                "crowded" => (watch.most_since(number(3)), watch.slack(THREADS)),
                "refused" => (watch.truth.used(pid, 0), watch.slack(1)),
                _ => break line,
            };
            let would_be = lost + number(1).max(CONTEXT) + slack;
            let charged = dir.number("memory.current");
            assert!(would_be > ROOMY, "{line}: {lost} lost, {charged} charged");
            if words[0] == "refused" {
                program.say("go on");
            } else {
                nr_crowded += 1;
                least = least.min(would_be);
            }
        };
        let counts: Vec<u64> = done.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [granted, refused] = counts[..] else {
            panic!("{done}")
        };
        let most = watch.truth.peak(pid, 0);
        println!("{done}, {nr_crowded} beside others at {least} or more, at most {most}");
        assert!(granted > 100 && nr_crowded > 0, "no limit was reached: {done}");
        assert!(refused <= nr_crowded, "{done}");
        assert!(most <= ROOMY + watch.slack(THREADS), "{most}");
        wait_until("what refused attempts have added is trimmed", || {
            watch.truth.used(pid, 0) <= ROOMY
        });
        // While managed memory is held, which may be on the host, contexts may stay charged after their end.
        wait_until("the charge is what the device has lost", || {
            let (charged, lost) = (dir.number("memory.current"), watch.truth.used(pid, 0));
            (lost..=lost + 2 * CONTEXT).contains(&charged)
        });
    }
}
