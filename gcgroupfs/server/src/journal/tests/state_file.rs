//! Tests of foreign files at the journal's name, removed files, and disks that cannot store.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkfifo};

use super::*;

/// Why a journal cannot be opened there.
fn refusal(directory: &Path) -> String {
    let begun = Instant::now();
    let refused = Journal::open::<u32>(directory, |_| ()).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(60), "nothing is waited for");
    refused.to_string()
}

#[test]
fn irregular_file_is_refused_at_once_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(NAME);
    let mode = || fs::symlink_metadata(&path).unwrap().mode() & 0o777;

    mkfifo(&path, Mode::from_bits_truncate(0o640)).unwrap();
    assert!(refusal(directory.path()).contains("is a FIFO"));
    assert_eq!(mode(), 0o640, "the mode is as it was");
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    assert!(refusal(directory.path()).contains("is a directory"));
    fs::remove_dir(&path).unwrap();

    let elsewhere = directory.path().join("elsewhere");
    fs::write(&elsewhere, "precious").unwrap();
    symlink(&elsewhere, &path).unwrap();
    assert!(refusal(directory.path()).contains("is a symbolic link"));
    fs::remove_file(&path).unwrap();
    symlink("/dev/zero", &path).unwrap();
    assert!(refusal(directory.path()).contains("is a symbolic link"));
    assert_eq!(fs::read(&elsewhere).unwrap(), b"precious");
}

#[test]
fn file_that_others_own_or_write_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(NAME);
    fs::write(&path, "theirs").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(refusal(directory.path()).contains("can be written by others (mode 0666)"));
    if geteuid().is_root() {
        chown(&path, Some(12345), None).unwrap();
        assert!(refusal(directory.path()).contains("belongs to user 12345"));
    }
    assert_eq!(
        fs::metadata(&path).unwrap().mode() & 0o777,
        0o666,
        "the mode is as it was"
    );
    assert_eq!(fs::read(&path).unwrap(), b"theirs");
}

/// Has the journal look after itself, as if enough time had passed.
fn tend(journal: &Journal) {
    let now = Instant::now();
    {
        let mut state = journal.state.lock();
        (state.checked, state.due) = (now - CHECK, None);
    }
    journal.tend(now, |_| true);
}

#[test]
fn removed_file_and_directory_are_made_again_with_all_settings() {
    let above = tempfile::tempdir().unwrap();
    let directory = above.path().join("a/b");
    let (journal, _) = Journal::open::<u32>(&directory, |_| ()).unwrap();
    append(&journal, A, 1);
    for n in 2..6 {
        match n % 2 {
            0 => fs::remove_file(&journal.path).unwrap(),
            _ => fs::remove_dir_all(above.path().join("a")).unwrap(),
        }
        append(&journal, B, n);
        tend(&journal);
        assert_eq!(journal.condition(), Condition::default());
        let text = fs::read(&journal.path).unwrap();
        let found = Replay::<u32>::of(&text, &boot_id()).latest;
        let found: BTreeMap<Key, u32> = found
            .values()
            .map(|record| (record.key, record.settings))
            .collect();
        assert_eq!(found, BTreeMap::from([(A, 1), (B, n)]));
    }
    assert!(
        Journal::open::<u32>(&directory, |_| ()).is_err(),
        "the new file is locked"
    );
}

#[test]
fn file_put_in_the_place_of_ours_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    append(&journal, A, 1);
    fs::remove_file(&journal.path).unwrap();
    fs::write(&journal.path, "another's").unwrap();
    tend(&journal);
    assert_eq!(journal.condition(), Condition::default());
    drop(journal);
    assert_eq!(reopen(directory.path()), BTreeMap::from([(A, 1)]));
}

#[test]
fn file_of_another_daemon_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    append(&journal, A, 1);
    fs::remove_file(&journal.path).unwrap();
    let (other, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    append(&other, B, 2);
    tend(&journal);
    append(&journal, A, 3);
    assert!(journal.condition().is_degraded);
    drop(other);
    assert_eq!(reopen(directory.path()), BTreeMap::from([(B, 2)]));
    tend(&journal);
    assert!(!journal.condition().is_degraded);
    drop(journal);
    assert_eq!(reopen(directory.path()), BTreeMap::from([(A, 3)]));
}

/// Makes the journal's file one that takes nothing.
fn fill(journal: &Journal) {
    let full = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut state = journal.state.lock();
    // What has that name takes nothing either.
    fs::remove_file(&journal.path).unwrap();
    fs::create_dir(&journal.path).unwrap();
    state.file = Some(full);
    state.is_spoilt = false;
}

#[test]
fn held_lines_are_the_latest_of_the_living_and_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<String>(directory.path(), |_| ()).unwrap();
    fill(&journal);
    let settings = "x".repeat(1000);
    let put = |key| journal.append(journal.number(), key, &settings);
    for pid in 1..10_000 {
        put(Key { pid, start_time: 1 });
        put(A);
        if journal.state.lock().nr_held_bytes > COMPACT_AFTER {
            journal.state.lock().due = None;
            journal.tend(Instant::now(), |key| key == A);
        }
        let state = journal.state.lock();
        assert!(state.nr_held_bytes < 2 * COMPACT_AFTER, "{}", state.nr_held_bytes);
        let held: u64 = state.held.values().map(|(_, line)| line.len() as u64).sum();
        assert_eq!(held, state.nr_held_bytes);
    }
    assert!(journal.condition().is_degraded);
    assert!(journal.state.lock().held.contains_key(&A));
}

#[test]
fn pauses_between_attempts_grow_up_to_a_bound() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    fill(&journal);
    append(&journal, A, 1);
    assert!(journal.is_due(), "the loop is to look");
    let mut now = Instant::now();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        journal.tend(now, |_| true);
        let state = journal.state.lock();
        pauses.push(state.pause);
        now = state.due.unwrap();
    }
    assert_eq!(pauses[0], RETRY);
    assert!(pauses.is_sorted() && pauses[7] == LONGEST_RETRY, "{pauses:?}");
    assert!(!journal.is_due());
    // Room again.
    fs::remove_dir(&journal.path).unwrap();
    let next = journal.tend(now, |_| true);
    assert!(!journal.condition().is_degraded && next > now);
    drop(journal);
    assert_eq!(reopen(directory.path()), BTreeMap::from([(A, 1)]));
}

#[test]
fn torn_write_is_cut_off_and_the_next_line_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    append(&journal, A, 1);
    {
        let mut state = journal.state.lock();
        let length = state.length;
        let file = state.file.as_ref().unwrap();
        file.write_all_at(b"{\"v\":3,\"crc", length).unwrap();
        state.cut();
        assert_eq!((state.length, state.is_spoilt), (length, false));
    }
    append(&journal, B, 2);
    drop(journal);
    assert_eq!(reopen(directory.path()), BTreeMap::from([(A, 1), (B, 2)]));
}
