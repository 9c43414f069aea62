//! Tests that `memory.events` counts each refused allocation once where the limit is, whichever call it was
//! and however often the hook tried.

use support::Mount;

use crate::driver::DriverShell;
use crate::memory_model::Random;

const MIB: u64 = 1 << 20;
const OUT_OF_MEMORY: &str = "error 2";
/// Calls under each limit.
const CALLS: usize = 60;

fn pick(random: &mut Random, length: usize) -> usize {
    usize::try_from(random.below(length as u64)).expect("an index")
}

/// Makes random allocations and frees; returns the numbers of allocations made and refused.
fn churn(shell: &mut DriverShell, random: &mut Random) -> (u64, u64) {
    let (mut held, mut nr_made, mut nr_refused) = (Vec::new(), 0, 0);
    for _ in 0..CALLS {
        if random.below(3) == 0 && !held.is_empty() {
            let id: String = held.swap_remove(pick(random, held.len()));
            assert_eq!(shell.ask(&format!("free {id}")), "ok");
            continue;
        }
        let kind = ["linear", "managed", "async", "pool", "vmm", "array"][pick(random, 6)];
        let bytes = (1 + random.below(40)) * 2 * MIB;
        match &*shell.ask(&format!("alloc {kind} {bytes}")) {
            OUT_OF_MEMORY => nr_refused += 1,
            made => {
                held.push(made.strip_prefix("ok ").expect("made or refused").to_owned());
                nr_made += 1;
            }
        }
    }
    for id in held {
        assert_eq!(shell.ask(&format!("free {id}")), "ok");
    }
    assert_eq!(shell.ask("sync"), "ok");
    (nr_made, nr_refused)
}

#[test]
fn each_refused_allocation_is_counted_once_at_its_limit() {
    let mount = Mount::new();
    for group in ["a", "a/b"] {
        std::fs::create_dir(mount.path().join(group)).expect("a new group");
    }
    let mut shell = DriverShell::start(&mount);
    let pid = shell.pid().to_string();
    mount.write("a/b", "gcgroup.procs", &pid);
    let count = |place: &str, key| mount.number(place, "memory.events", key);
    let mut random = Random(0x9e37_79b9);
    for place in [&pid, &format!("{pid}/0"), "a/b", "a/b/0", "a", "a/0"] {
        let of_group = place.starts_with('a');
        mount.write(place, "memory.limit", "100M");
        let before = ["max", "oom"].map(|key| count(place, key));
        let before_in_process = count(&pid, "group_max");
        let before_in_all = count("", "oom");
        assert_eq!(shell.ask(&format!("alloc linear {}", 1_u64 << 60)), OUT_OF_MEMORY);
        let (nr_made, nr_refused) = churn(&mut shell, &mut random);
        let nr_refused = nr_refused + 1;
        assert!(nr_made > 0 && nr_refused > 0, "{place}: {nr_made} {nr_refused}");
        let [hit, refused] = ["max", "oom"].map(|key| count(place, key));
        assert_eq!(refused - before[1], nr_refused, "{place}: oom");
        assert_eq!(
            count("", "oom") - before_in_all,
            nr_refused,
            "{place}: oom of all"
        );
        let hit = hit - before[0];
        match of_group {
            true => assert_eq!(hit, nr_refused, "{place}: max"),
            false => assert!(
                (nr_refused..=nr_refused + nr_made).contains(&hit),
                "{place}: {hit}"
            ),
        }
        let in_process = count(&pid, "group_max") - before_in_process;
        assert_eq!(
            in_process,
            if of_group { nr_refused } else { 0 },
            "{place}: group_max"
        );
        mount.write(place, "memory.limit", "max");
    }
}
