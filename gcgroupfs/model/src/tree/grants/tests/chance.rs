//! Random operations: after each step all sums are checked, and each answer is compared with a simple model.

use super::race::Chance;
use super::*;

const MEMBERS: u64 = 5;
const GROUPS: [GroupId; 3] = [TOP, LEFT, RIGHT];
const PLACES: [Option<usize>; 3] = [None, Some(0), Some(1)];

fn current(grants: &Grants, id: ProcessId, at: usize) -> u64 {
    grants.members[&id].current(at)
}

/// Returns the bytes charged in a group and below, on one device or on all, with the overhead.
fn used(grants: &Grants, id: GroupId, position: Position) -> u64 {
    let of = |id: &ProcessId| -> u64 {
        let member = &grants.members[id];
        let each = grants.positions(position).map(|at| {
            let beside = member.charge(at).all - u128::from(member.held(at));
            current(grants, *id, at) + u64::try_from(beside).unwrap()
        });
        each.sum()
    };
    grants.below(id).iter().map(of).sum()
}

fn check(grants: &Grants) {
    for id in GROUPS {
        let below = grants.below(id);
        assert_eq!(below.len(), grants.groups[&id].nr_below);
        for position in grants.positions(None).map(Some).chain([None]) {
            let held = |id: &ProcessId| -> u128 {
                let member = &grants.members[id];
                grants.positions(position).map(|at| member.charge(at).all).sum()
            };
            let sum: u128 = below.iter().map(held).sum();
            assert_eq!(grants.groups[&id].charged(position), sum, "{id:?} {position:?}");
        }
    }
    for (id, member) in &grants.members {
        let chain = grants.chain(member.group);
        for at in grants.positions(None) {
            let is_limited = chain.iter().any(|id| grants.groups[id].limits.concern(at));
            let word = member.blocks.usage().raw().devices[grants.slots[at]]
                .memory_granted
                .load(Relaxed);
            if is_limited {
                assert!(current(grants, *id, at) <= member.held(at), "{id:?} {at}");
                assert!(word == member.held(at) || word == 0, "{id:?} {at}: {word}");
            } else {
                assert_eq!(word, NO_LIMIT, "{id:?} {at}");
            }
        }
    }
}

/// Allocates, and checks that it succeeds if and only if every limit above has room beside all that is used.
fn allocate(grants: &mut Grants, id: ProcessId, device: usize, bytes: u64) {
    let chain = grants.chain(grants.members[&id].group);
    let levels = chain
        .iter()
        .flat_map(|id| [(*id, None), (*id, Some(device))])
        .filter(|(id, position)| grants.limit(*id, *position) != NO_LIMIT);
    let has_room = |(id, position): (GroupId, Position)| {
        u128::from(used(grants, id, position)) + u128::from(bytes) <= grants.limit(id, position).into()
    };
    let fits: Vec<_> = levels.map(|level| (level, has_room(level))).collect();
    let missing = fits.iter().find(|(_, fits)| !fits).map(|(level, _)| *level);
    match (grants.allocate(id, device, bytes), missing) {
        (Ok(()), None) => {}
        (Err(refusal), Some(_)) => {
            let level = (refusal.group, refusal.device);
            assert!(fits.contains(&(level, false)), "{level:?} had room: {fits:?}");
        }
        (answer, missing) => panic!("{id:?} {device} {bytes}: {answer:?}, but {missing:?}"),
    }
}

fn step(grants: &mut Grants, chance: &mut Chance) {
    let id = ProcessId(chance.below(MEMBERS));
    let group = GROUPS[usize::try_from(chance.below(3)).unwrap()];
    let device = usize::try_from(chance.below(2)).unwrap();
    let bytes = chance.below(400) + 1;
    if !grants.members.contains_key(&id) {
        return grants.join(id, Some(group), blocks());
    }
    match chance.below(16) {
        0 => grants.leave(id),
        1 => grants.move_to(id, Some(group).filter(|_| bytes > 50)),
        2 => {
            let limit = if bytes > 300 { NO_LIMIT } else { bytes * 5 };
            grants.set_limit(group, PLACES[usize::try_from(chance.below(3)).unwrap()], limit);
        }
        3 => grants.set_overhead(id, device, bytes / 4),
        4 => {
            grants.force(id, device, bytes);
            grants.show(id, device, current(grants, id, device));
            // Granted or refused, it is held in any case.
            grants.request(id, device, (0, false));
        }
        5 => {
            grants.has_unused(id);
            grants.take_unused(id);
            assert!(!grants.has_unused(id));
        }
        6..=9 => grants.free(id, device, bytes.min(current(grants, id, device))),
        _ => allocate(grants, id, device, bytes),
    }
}

#[test]
fn random_allocations_succeed_if_and_only_if_there_is_room() {
    for seed in 1..=12 {
        let (mut grants, mut chance) = (grants(), Chance(seed));
        for _ in 0..1500 {
            step(&mut grants, &mut chance);
            check(&grants);
        }
    }
}
