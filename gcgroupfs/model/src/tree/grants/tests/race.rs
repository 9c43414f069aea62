//! Threads that charge and uncharge as processes do, against a daemon that takes back, moves and sets limits.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use parking_lot::Mutex;

use super::*;

const LIMIT: u64 = 1000;
const ROUNDS: u64 = 40_000;
const PROCESSES: [ProcessId; 4] = [ProcessId(11), ProcessId(12), ProcessId(13), ProcessId(14)];

/// Pseudo-random numbers (xorshift).
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Bytes charged: raised after a charge and lowered before it is undone, so never more than is charged.
#[derive(Default)]
struct Committed {
    all: AtomicU64,
    each: [[AtomicU64; 2]; 4],
}

/// Runs one process: charges that succeed or are refused, all undone in the end. Returns how many succeeded.
fn live(grants: &Mutex<Grants>, committed: &Committed, number: usize) -> u64 {
    let id = PROCESSES[number];
    let blocks = grants.lock().members[&id].blocks.clone();
    let mut chance = Chance(0x9e37_79b9 + number as u64);
    let (mut mine, mut nr_charged) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        let (device, bytes) = (usize::try_from(chance.below(2)).unwrap(), chance.below(300) + 1);
        let usage = &blocks.usage().raw().devices[device];
        loop {
            let charged = try_charge_granted(&usage.memory_current, &usage.memory_granted, bytes, NO_LIMIT);
            if charged.is_ok() {
                committed.each[number][device].fetch_add(bytes, SeqCst);
                let all = committed.all.fetch_add(bytes, SeqCst) + bytes;
                assert!(all <= LIMIT, "{all} are charged");
                mine.push((device, bytes));
                nr_charged += 1;
                break;
            }
            if grants.lock().request(id, device, (bytes, false)) != GrantResult::Granted {
                break;
            }
        }
        while mine.len() > 3 || (!mine.is_empty() && chance.below(2) == 0) {
            let at = usize::try_from(chance.below(mine.len() as u64)).unwrap();
            let (device, bytes) = mine.swap_remove(at);
            committed.all.fetch_sub(bytes, SeqCst);
            committed.each[number][device].fetch_sub(bytes, SeqCst);
            uncharge(&blocks.usage().raw().devices[device].memory_current, bytes);
        }
    }
    for (device, bytes) in mine {
        committed.all.fetch_sub(bytes, SeqCst);
        committed.each[number][device].fetch_sub(bytes, SeqCst);
        uncharge(&blocks.usage().raw().devices[device].memory_current, bytes);
    }
    nr_charged
}

/// Does one random step of the daemon, and checks what must hold under the lock.
fn govern(grants: &Mutex<Grants>, committed: &Committed, chance: &mut Chance) {
    let mut grants = grants.lock();
    let id = PROCESSES[usize::try_from(chance.below(4)).unwrap()];
    let groups = [Some(LEFT), Some(RIGHT), Some(TOP)];
    match chance.below(4) {
        0 => grants.move_to(id, groups[usize::try_from(chance.below(3)).unwrap()]),
        1 => grants.set_limit(LEFT, Some(0), 100 + chance.below(LIMIT)),
        2 => grants.set_limit(RIGHT, None, NO_LIMIT - chance.below(2) * (NO_LIMIT - 500)),
        _ => grants.take_back(TOP, None, chance.below(LIMIT), None),
    }
    assert!(grants.charged(TOP, None) <= LIMIT.into());
    for (id, counts) in PROCESSES.iter().zip(&committed.each) {
        for (at, count) in counts.iter().enumerate() {
            let (held, count) = (grants.members[id].held(at), count.load(SeqCst));
            assert!(count <= held, "{count} are charged of {held} that are held");
        }
    }
}

/// A process that charges memory beyond the limit because it exists, as when a pool grows, is refused when it
/// compares that, whenever the daemon looks.
#[test]
fn charge_beyond_limit_is_never_granted_by_a_look() {
    let mut grants = grants();
    grants.set_limit(TOP, None, LIMIT);
    grants.add(A, LEFT);
    grants.allocate(A, 0, LIMIT).unwrap();
    let blocks = grants.members[&A].blocks.clone();
    let grants = Mutex::new(grants);
    thread::scope(|scope| {
        let process = scope.spawn(|| {
            let usage = &blocks.usage().raw().devices[0];
            for round in 0..ROUNDS {
                usage.memory_current.fetch_add(1, SeqCst);
                let compared =
                    || try_charge_granted(&usage.memory_current, &usage.memory_granted, 0, NO_LIMIT);
                for _ in 0..100 {
                    assert_eq!(compared(), Err(Short::Grant), "round {round}");
                }
                uncharge(&usage.memory_current, 1);
                // Opens the grant again.
                while compared().is_err() {
                    assert_eq!(grants.lock().request(A, 0, (0, false)), GrantResult::Granted);
                }
            }
        });
        while !process.is_finished() {
            grants.lock().look(A);
        }
    });
}

#[test]
fn concurrent_charges_never_exceed_limit_nor_lose_room() {
    let mut grants = grants();
    grants.set_limit(TOP, None, LIMIT);
    PROCESSES.iter().for_each(|id| grants.add(*id, LEFT));
    let (grants, committed) = (Mutex::new(grants), Committed::default());
    let nr_charged: u64 = thread::scope(|scope| {
        let (grants, committed) = (&grants, &committed);
        let lives: Vec<_> = (0..PROCESSES.len())
            .map(|number| scope.spawn(move || live(grants, committed, number)))
            .collect();
        let mut chance = Chance(77);
        while !lives.iter().all(thread::ScopedJoinHandle::is_finished) {
            govern(grants, committed, &mut chance);
        }
        lives.into_iter().map(|life| life.join().unwrap()).sum()
    });
    assert!(nr_charged > ROUNDS, "{nr_charged} charges were committed");
    let mut grants = grants.into_inner();
    grants.set_limit(LEFT, Some(0), NO_LIMIT);
    grants.set_limit(RIGHT, None, NO_LIMIT);
    for id in PROCESSES {
        assert_eq!(grants.allocate(id, 1, LIMIT + 1), refused(TOP, None));
        grants.allocate(id, 1, LIMIT).unwrap();
        grants.free(id, 1, LIMIT);
    }
}
