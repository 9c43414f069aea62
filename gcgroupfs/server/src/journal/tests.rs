//! State files that are cut, damaged, shared and rewritten.

mod damage;
mod state_file;

use std::fs;

use super::replay::header;
use super::state_file::PAUSE;
use super::*;

const A: Key = Key {
    pid: 1,
    start_time: 10,
};
const B: Key = Key {
    pid: 2,
    start_time: 20,
};

fn reopen(directory: &Path) -> BTreeMap<Key, u32> {
    Journal::open(directory, |_| ()).unwrap().1
}

fn append(journal: &Journal, key: Key, settings: u32) {
    journal.append(journal.number(), key, &settings);
}

fn is_long(journal: &Journal) -> bool {
    journal.state.lock().is_long()
}

#[test]
fn reopened_journal_has_the_last_settings_of_each_process() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, found) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    assert!(found.is_empty());
    append(&journal, A, 1);
    append(&journal, B, 2);
    append(&journal, A, 3);
    drop(journal);
    assert_eq!(reopen(directory.path()), BTreeMap::from([(A, 3), (B, 2)]));
    assert_eq!(
        reopen(directory.path()),
        BTreeMap::from([(A, 3), (B, 2)]),
        "compacted"
    );
}

#[test]
fn record_number_decides_not_the_order_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    let (first, second) = (journal.number(), journal.number());
    journal.append(second, A, &2);
    journal.append(first, A, &1);
    drop(journal);
    let (journal, found) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    assert_eq!(found, BTreeMap::from([(A, 2)]));
    append(&journal, A, 3);
    drop(journal);
    assert_eq!(
        reopen(directory.path()),
        BTreeMap::from([(A, 3)]),
        "numbers go on after a restart"
    );
}

#[test]
fn records_of_dead_processes_are_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    append(&journal, A, 1);
    append(&journal, B, 2);
    drop(journal);
    let (_, found) =
        Journal::open::<u32>(directory.path(), |found| found.retain(|key, _| *key == B)).unwrap();
    assert_eq!(found, BTreeMap::from([(B, 2)]));
    assert_eq!(reopen(directory.path()), BTreeMap::from([(B, 2)]));
}

#[test]
fn file_cut_anywhere_keeps_the_lines_before_the_cut_and_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    append(&journal, A, 1);
    append(&journal, A, 2);
    let whole = fs::read(&journal.path).unwrap();
    let path = journal.path.clone();
    drop(journal);
    let ends: Vec<usize> = (1..=whole.len()).filter(|end| whole[end - 1] == b'\n').collect();
    for cut in 0..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let lines = ends[1..].iter().filter(|end| cut >= **end).count();
        let (journal, found) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
        assert_eq!(found.get(&A).copied(), [None, Some(1)][lines], "cut at {cut}");
        assert!(journal.condition().nr_damaged > 0, "cut at {cut}");
    }
}

#[test]
fn missing_line_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    for value in 1..6 {
        append(&journal, A, value);
        append(&journal, B, value);
    }
    let whole = fs::read_to_string(&journal.path).unwrap();
    let path = journal.path.clone();
    drop(journal);
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    for missing in 0..lines.len() {
        let mut rest = lines.clone();
        rest.remove(missing);
        fs::write(&path, rest.concat()).unwrap();
        let (journal, found) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
        assert_eq!(journal.condition().nr_damaged, 1, "{missing}");
        assert_eq!(found.len(), 2);
    }
}

/// The first line, with the number of the last one, is written after the others.
#[test]
fn write_that_was_killed_counts_as_none_and_is_no_damage() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    journal.append_all(&[(journal.number(), A, 1), (journal.number(), B, 1)]);
    let before = fs::read(&journal.path).unwrap();
    journal.append_all(&[(journal.number(), A, 2), (journal.number(), B, 2)]);
    let whole = fs::read(&journal.path).unwrap();
    let path = journal.path.clone();
    drop(journal);
    for cut in before.len()..=whole.len() {
        fs::write(&path, [&before, &whole[before.len()..cut]].concat()).unwrap();
        let (journal, found) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
        assert_eq!(found, BTreeMap::from([(A, 1), (B, 1)]), "cut at {cut}");
        assert_eq!(journal.condition().nr_damaged, 0, "cut at {cut}");
        append(&journal, A, 3);
        drop(journal);
        assert_eq!(
            reopen(directory.path()),
            BTreeMap::from([(A, 3), (B, 1)]),
            "cut at {cut}"
        );
    }
}

/// The last line of the compacted file was not the last of its write.
#[test]
fn compaction_keeps_lines_whose_successors_it_leaves_out() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    journal.append_all(&[(journal.number(), B, 1), (journal.number(), A, 1)]);
    append(&journal, A, 2);
    journal.compact(|_| true).unwrap();
    drop(journal);
    assert_eq!(reopen(directory.path()), BTreeMap::from([(A, 2), (B, 1)]));
}

#[test]
fn impossible_number_is_damage_and_later_lines_count() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    append(&journal, A, 1);
    journal.append(u64::MAX, A, &2);
    drop(journal);
    let (journal, found) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    assert_eq!(found, BTreeMap::from([(A, 1)]));
    append(&journal, A, 3);
    drop(journal);
    assert_eq!(reopen(directory.path()), BTreeMap::from([(A, 3)]));
}

#[test]
fn settings_of_another_boot_are_not_restored() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    append(&journal, A, 1);
    let path = journal.path.clone();
    drop(journal);
    fs::write(&path, header("another", 0)).unwrap();
    let (journal, found) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    assert_eq!((found.len(), journal.condition()), (0, Condition::default()));
}

#[test]
fn line_appended_during_a_compaction_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    append(&journal, A, 1);
    append(&journal, A, 2);
    let before = fs::metadata(&journal.path).unwrap().len();
    // Liveness is queried between the reading and the replacing.
    journal
        .compact(|_| {
            append(&journal, B, 3);
            true
        })
        .unwrap();
    append(&journal, B, 4);
    assert!(fs::metadata(&journal.path).unwrap().len() < before + 2 * 60);
    drop(journal);
    assert_eq!(reopen(directory.path()), BTreeMap::from([(A, 2), (B, 4)]));
}

#[test]
fn file_is_compacted_when_most_of_it_is_superseded() {
    const MIB: u64 = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<String>(directory.path(), |_| ()).unwrap();
    let length = || fs::metadata(&journal.path).unwrap().len();
    let put = |key: Key, length: u64| {
        let settings = "x".repeat(usize::try_from(length).unwrap());
        journal.append(journal.number(), key, &settings);
    };
    // Little counts: a MiB of what does not is too much.
    while !is_long(&journal) {
        put(A, MIB / 8);
    }
    assert!((MIB..MIB + MIB / 4).contains(&length()), "{}", length());
    journal.compact(|_| true).unwrap();
    assert!(length() < MIB / 4);
    // Much does, and as much may be superseded.
    put(B, 5 * MIB);
    journal.compact(|key| key == B).unwrap();
    while !is_long(&journal) {
        put(A, MIB / 8);
    }
    assert!((10 * MIB..10 * MIB + MIB / 4).contains(&length()), "{}", length());
}

#[test]
fn second_daemon_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (_journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    let error = Journal::open::<u32>(directory.path(), |_| ()).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
}

#[test]
fn daemon_beside_a_killed_one_has_its_records_in_an_own_file() {
    let directory = tempfile::tempdir().unwrap();
    let (killed, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    append(&killed, A, 1);
    let (journal, found) = Journal::open_beside_killed::<u32>(directory.path(), |_| ()).unwrap();
    assert_eq!(found, BTreeMap::from([(A, 1)]));
    append(&journal, A, 2);
    assert!(
        Journal::open::<u32>(directory.path(), |_| ()).is_err(),
        "it is locked"
    );
    drop(journal);
    assert_eq!(reopen(directory.path()), BTreeMap::from([(A, 2)]));
    drop(killed);
}

#[test]
fn lock_that_is_soon_released_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    append(&journal, A, 1);
    let found = std::thread::scope(|scope| {
        let next = scope.spawn(|| reopen(directory.path()));
        std::thread::sleep(PAUSE);
        drop(journal);
        next.join().unwrap()
    });
    assert_eq!(found, BTreeMap::from([(A, 1)]));
}
