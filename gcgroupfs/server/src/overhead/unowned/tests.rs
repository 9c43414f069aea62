//! Random interleavings of looks at a device with processes that share memory, free it, and end.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{Kind, OTHER_DEVICE};
use parking_lot::Mutex;

use crate::overhead::Source;
use crate::overhead::samples::Samples;
use gcgroupfs_model::tree::fixture::{ROOT, World};
use gcgroupfs_model::tree::{ProcessId, Tree};

const GROUPS: [&str; 2] = ["a", "b"];
const CONTEXT: u64 = 16;
/// Bytes in use on a device that nobody uses.
const IDLE: u64 = 7;

/// A part of a call of the hook or of the driver, or of the end of a process.
#[derive(Clone, Copy)]
enum Step {
    BeginCall,
    EndCall,
    Charge(u64),
    ChargeContext,
    MakeContext,
    Make(u64),
    Count(u64),
    Share,
    /// Whether another process keeps a descriptor.
    Export(bool),
    Free,
    CountOut,
    Uncharge,
    KeepFreed,
    KeepCharge,
    Unshare,
    Correct,
    /// The device ends the process.
    End,
    /// The daemon notices it.
    Leave,
}

/// The steps by which a process frees memory that it has shared.
const FREE_SHARED: [Step; 7] = [
    Step::BeginCall,
    Step::Free,
    Step::CountOut,
    Step::KeepFreed,
    Step::KeepCharge,
    Step::Unshare,
    Step::EndCall,
];

#[derive(Clone, Copy, Default)]
struct Block {
    bytes: u64,
    is_shared: bool,
    is_held: bool,
}

struct Process {
    id: ProcessId,
    pid: u32,
    group: usize,
    has_context: bool,
    blocks: Vec<Block>,
    /// The block that is being freed.
    gone: Block,
    /// Bytes charged for freed memory, until they are measured.
    kept: u64,
    steps: VecDeque<Step>,
}

impl Process {
    fn on_device(&self) -> u64 {
        let blocks: u64 = self.blocks.iter().map(|block| block.bytes).sum();
        blocks + if self.has_context { CONTEXT } else { 0 }
    }
}

struct State {
    world: World,
    random: u64,
    next_pid: u32,
    processes: Vec<Process>,
    /// Groups and bytes of memory that descriptors hold.
    unowned: Vec<(usize, u64)>,
    /// Whether descriptors are closed at any time.
    closes: bool,
    is_quiet: bool,
    /// Steps of the first process, all made when the device is asked next.
    script: VecDeque<Step>,
}

impl State {
    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random >> 11).unwrap() % end
    }

    fn start(&mut self) {
        let (pid, group) = (self.next_pid, self.below(2));
        self.next_pid += 1;
        let id = self.world.join(pid);
        let path = format!("{}/gcgroup.procs", GROUPS[group]);
        self.world.store(&path, ROOT, &pid.to_string()).unwrap();
        let steps = [
            Step::BeginCall,
            Step::ChargeContext,
            Step::MakeContext,
            Step::EndCall,
        ];
        self.processes.push(Process {
            id,
            pid,
            group,
            has_context: false,
            blocks: Vec::new(),
            gone: Block::default(),
            kept: 0,
            steps: steps.into(),
        });
    }

    /// Lets a process, or several, do something.
    fn run(&mut self, most: usize) {
        while let Some(step) = self.script.pop_front() {
            self.make(0, step);
        }
        let most = if self.is_quiet { 0 } else { most };
        for _ in 0..self.below(most + 1) {
            let choice = self.below(12);
            if choice == 0 && self.processes.len() < 4 {
                self.start();
            } else if choice == 1 && self.closes && !self.unowned.is_empty() {
                let at = self.below(self.unowned.len());
                self.unowned.swap_remove(at);
            } else if !self.processes.is_empty() {
                let at = self.below(self.processes.len());
                self.advance(at);
            }
        }
    }

    /// Lets a process do its next step; it may be killed at each.
    fn advance(&mut self, at: usize) {
        let choice = self.below(24);
        let (bytes, is_held) = (2 + 2 * self.below(40) as u64, self.below(4) != 0);
        let process = &mut self.processes[at];
        let may_end = !matches!(process.steps.front(), Some(Step::Leave));
        if choice == 0 && may_end {
            process.steps = [Step::End, Step::Leave].into();
        }
        if let Some(step) = process.steps.pop_front() {
            return self.make(at, step);
        }
        let is_shared = process.blocks.last().is_some_and(|block| block.is_shared);
        process.steps = match choice {
            1..8 => [Step::Charge(bytes), Step::Make(bytes), Step::Count(bytes)].into(),
            8..14 if !is_shared && !process.blocks.is_empty() => [Step::Share, Step::Export(is_held)].into(),
            14..22 if is_shared => FREE_SHARED.into(),
            14..22 if !process.blocks.is_empty() => [Step::Free, Step::CountOut, Step::Uncharge].into(),
            _ if process.kept > 0 => [Step::Correct].into(),
            _ => VecDeque::new(),
        };
    }

    fn make(&mut self, at: usize, step: Step) {
        let process = &mut self.processes[at];
        let (usage, control) = (self.world.usage(process.id), self.world.control(process.id));
        let (device, other) = (&usage.devices[0], &usage.devices[OTHER_DEVICE]);
        let charge = |bytes| {
            usage.memory_taken.fetch_add(bytes, Relaxed);
            device.memory_current.fetch_add(bytes, Relaxed);
        };
        let vmm = &device.kinds[Kind::Vmm as usize];
        match step {
            Step::BeginCall => drop(other.unsettled.fetch_add((1 << 32) + 1, Relaxed)),
            Step::EndCall => drop(other.unsettled.fetch_sub(1, Relaxed)),
            Step::Charge(bytes) => charge(bytes),
            Step::ChargeContext => {
                charge(CONTEXT);
                device.context_charged.fetch_add(CONTEXT, Relaxed);
            }
            Step::MakeContext => {
                process.has_context = true;
                device.nr_contexts.store(1, Relaxed);
            }
            Step::Make(bytes) => process.blocks.push(Block {
                bytes,
                ..Block::default()
            }),
            Step::Count(bytes) => {
                device.nr_alloc.fetch_add(1, Relaxed);
                vmm.fetch_add(bytes, Relaxed);
            }
            Step::Share => drop(usage.nr_shared.fetch_add(1, Relaxed)),
            Step::Export(is_held) => {
                let block = process.blocks.last_mut().unwrap();
                (block.is_shared, block.is_held) = (true, is_held);
            }
            Step::Free => {
                process.gone = process.blocks.pop().unwrap();
                if process.gone.is_held {
                    self.unowned.push((process.group, process.gone.bytes));
                }
            }
            Step::CountOut => {
                device.nr_free.fetch_add(1, Relaxed);
                vmm.fetch_sub(process.gone.bytes, Relaxed);
            }
            Step::Uncharge => drop(device.memory_current.fetch_sub(process.gone.bytes, Relaxed)),
            Step::KeepFreed => drop(device.shared_freed.fetch_add(process.gone.bytes, Relaxed)),
            Step::KeepCharge => {
                device.context_charged.fetch_add(process.gone.bytes, Relaxed);
                device.context_estimated.fetch_add(process.gone.bytes, Relaxed);
                process.kept += process.gone.bytes;
                device.context_request.fetch_add(1, Relaxed);
            }
            Step::Unshare => drop(usage.nr_shared.fetch_sub(1, Relaxed)),
            Step::Correct => {
                let answer = &control.devices[0];
                if answer.context_answer.load(Relaxed) == device.context_request.load(Relaxed) {
                    let missing = answer.context_missing.load(Relaxed).cast_signed();
                    let less = missing.min(0).unsigned_abs().min(process.kept);
                    other.unsettled.fetch_add(1 << 32, Relaxed);
                    device.context_charged.fetch_sub(less, Relaxed);
                    device.context_estimated.store(0, Relaxed);
                    device.memory_current.fetch_sub(less, Relaxed);
                    process.kept = 0;
                }
            }
            Step::End => {
                let held = process.blocks.drain(..).filter(|block| block.is_held);
                self.unowned
                    .extend(held.map(|block| (process.group, block.bytes)));
                process.has_context = false;
            }
            Step::Leave => {
                self.world.tree.leave(process.id, 0);
                self.processes.swap_remove(at);
            }
        }
    }

    /// Compares what groups are charged with what they hold and have left.
    fn check(&self) {
        let truths = [0, 1].map(|group| {
            let processes = self.processes.iter().filter(|process| process.group == group);
            let left = self.unowned.iter().filter(|(of, _)| *of == group);
            processes.map(Process::on_device).sum::<u64>() + left.map(|(_, bytes)| *bytes).sum::<u64>()
        });
        let charged = self.charged();
        match self.closes {
            // Which group has let go of memory is not known.
            true => assert!(charged.iter().sum::<u64>() >= truths.iter().sum()),
            false => assert!(
                charged[0] >= truths[0] && charged[1] >= truths[1],
                "{charged:?} {truths:?}"
            ),
        }
    }

    fn charged(&self) -> [u64; 2] {
        let current = |group| self.world.show(&format!("{group}/0/memory.current"));
        GROUPS.map(|group| current(group).trim().parse().unwrap())
    }
}

/// A device on which processes run while it is asked.
struct Simulated(Mutex<State>);

impl Source for Simulated {
    fn held(&self, _: usize) -> Option<HashMap<u32, Option<u64>>> {
        let mut held = HashMap::new();
        let mut state = self.0.lock();
        state.run(3);
        let pids: Vec<u32> = state.processes.iter().map(|process| process.pid).collect();
        for pid in pids {
            state.run(1);
            let mut processes = state.processes.iter();
            let bytes = processes
                .find(|process| process.pid == pid)
                .map(Process::on_device);
            if let Some(bytes) = bytes.filter(|bytes| *bytes > 0) {
                held.insert(pid, Some(bytes));
            }
        }
        state.run(3);
        Some(held)
    }

    fn used(&self, _: usize) -> Option<u64> {
        let mut state = self.0.lock();
        state.run(3);
        let owned: u64 = state.processes.iter().map(Process::on_device).sum();
        let unowned: u64 = state.unowned.iter().map(|(_, bytes)| *bytes).sum();
        Some(IDLE + owned + unowned)
    }
}

/// Returns a device that nobody uses yet, and its tree.
fn device(seed: u64, closes: bool) -> (Arc<Tree>, Simulated) {
    let world = World::new(1);
    for group in GROUPS {
        world.group(group);
    }
    let tree = Arc::clone(&world.tree);
    let device = Simulated(Mutex::new(State {
        world,
        random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        next_pid: 100,
        processes: Vec::new(),
        unowned: Vec::new(),
        closes,
        is_quiet: true,
        script: VecDeque::new(),
    }));
    (tree, device)
}

fn run(seed: u64, closes: bool) {
    let (tree, device) = device(seed, closes);
    let mut samples = Samples::default();
    samples.take(&tree, &device);
    device.0.lock().is_quiet = false;
    for _ in 0..40 {
        device.0.lock().run(25);
        device.0.lock().check();
        samples.take(&tree, &device);
        device.0.lock().check();
        samples.measure_contexts(&tree, &device);
        device.0.lock().check();
    }
    let mut state = device.0.lock();
    while !state.processes.is_empty() {
        state.processes[0].steps = [Step::End, Step::Leave].into();
        state.make(0, Step::End);
        state.make(0, Step::Leave);
    }
    state.is_quiet = true;
    drop(state);
    for _ in 0..3 {
        samples.take(&tree, &device);
    }
    let mut state = device.0.lock();
    let left = state.unowned.iter().map(|(_, bytes)| *bytes).sum();
    assert!(
        state.charged().iter().all(|charged| *charged <= left),
        "of {left}: {:?}",
        state.charged()
    );
    state.unowned.clear();
    drop(state);
    samples.take(&tree, &device);
    assert_eq!(device.0.lock().charged(), [0, 0]);
}

#[test]
fn groups_are_charged_for_all_that_ended_processes_left() {
    (0..24).for_each(|seed| run(seed, false));
}

#[test]
fn groups_together_are_charged_for_memory_that_is_let_go() {
    (0..24).for_each(|seed| run(seed, true));
}

#[test]
fn memory_shared_and_freed_during_a_look_is_charged() {
    let (tree, device) = device(1, false);
    let mut samples = Samples::default();
    samples.take(&tree, &device);
    let mut state = device.0.lock();
    state.start();
    let first = state.processes[0].steps.drain(..).collect::<Vec<_>>();
    state.script = first.into();
    state
        .script
        .extend([Step::Charge(64), Step::Make(64), Step::Count(64)]);
    drop(state);
    samples.take(&tree, &device);
    let mut state = device.0.lock();
    state.script.extend([Step::Share, Step::Export(true)]);
    state.script.extend(FREE_SHARED);
    drop(state);
    samples.take(&tree, &device);
    let mut state = device.0.lock();
    state.make(0, Step::End);
    state.make(0, Step::Leave);
    drop(state);
    for _ in 0..2 {
        samples.take(&tree, &device);
        device.0.lock().check();
    }
}
