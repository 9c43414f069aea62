//! Files with damaged bits, and what is told of them.

use super::super::line::encode;
use super::*;
use gcgroupfs_model::tree::Saved;

/// A file with the settings of several processes and groups, and the settings.
fn realistic(directory: &Path) -> (Vec<u8>, BTreeMap<Key, Saved>) {
    let saved = |text: &str| serde_json::from_str::<Saved>(text).unwrap();
    let (journal, _) = Journal::open::<Saved>(directory, |_| ()).unwrap();
    let put = |key, text| journal.append(journal.number(), key, &saved(text));
    let group = Key::group(1 << 48);
    put(Key::ROOT, r#"{"policy":"strict","next_group":281474976710658}"#);
    put(
        group,
        r#"{"process":{"memory_limit":{"value":67108864,"root":67108864}},"made":{"name":"team","by":1000}}"#,
    );
    put(
        A,
        r#"{"process":{"priority":{"value":11,"root":11}},"group":281474976710656}"#,
    );
    put(
        A,
        r#"{"process":{"priority":{"value":3,"root":11}},"group":281474976710656}"#,
    );
    put(
        B,
        r#"{"process":{"freeze":{"value":true,"root":true}},"devices":{"GPU-0":{"memory_limit":{"value":1}}}}"#,
    );
    let text = fs::read(&journal.path).unwrap();
    drop(journal);
    let (_, found) = Journal::open::<Saved>(directory, |_| ()).unwrap();
    assert_eq!(found.len(), 4);
    assert!(found.values().all(|saved| !saved.is_default()), "{found:?}");
    (text, found)
}

#[test]
fn each_flipped_bit_loses_nothing_or_is_a_fault() {
    let directory = tempfile::tempdir().unwrap();
    let (text, whole) = realistic(directory.path());
    let boot = boot_id();
    for bit in 0..text.len() * 8 {
        let mut flipped = text.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let replay = Replay::<Saved>::of(&flipped, &boot);
        assert!(replay.nr_damaged > 0, "bit {bit}");
        let found = replay.latest;
        // An older line of the same process counts where the newest is lost.
        let is_older = |key: &Key, saved: &Saved| *key == A && saved.group == whole[&A].group;
        let mut changed = found
            .iter()
            .filter(|(key, record)| whole.get(key) != Some(&record.settings));
        assert!(
            changed.all(|(key, record)| is_older(key, &record.settings)),
            "bit {bit}: {found:?}"
        );
        // A damaged newline costs two lines.
        assert!(found.len() + 2 >= whole.len(), "bit {bit}: {found:?}");
    }
}

#[test]
fn damaged_file_is_reported_once() {
    let directory = tempfile::tempdir().unwrap();
    let (text, _) = realistic(directory.path());
    let path = directory.path().join(NAME);
    for bit in (0..text.len() * 8).step_by(41) {
        let mut flipped = text.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &flipped).unwrap();
        let (journal, found) = Journal::open::<Saved>(directory.path(), |_| ()).unwrap();
        assert!(journal.condition().nr_damaged > 0, "bit {bit}");
        drop(journal);
        let (journal, again) = Journal::open::<Saved>(directory.path(), |_| ()).unwrap();
        assert_eq!(
            (again, journal.condition().nr_damaged),
            (found, 0),
            "bit {bit}: rewritten"
        );
    }
}

#[test]
fn damaged_boot_id_loses_no_setting() {
    let directory = tempfile::tempdir().unwrap();
    let (text, whole) = realistic(directory.path());
    let path = directory.path().join(NAME);
    let mut damaged = text.clone();
    let at = text.windows(7).position(|bytes| bytes == b"boot_id").unwrap() + 12;
    damaged[at] ^= 1;
    fs::write(&path, &damaged).unwrap();
    let (journal, found) = Journal::open::<Saved>(directory.path(), |_| ()).unwrap();
    assert_eq!(found, whole);
    assert_eq!(journal.condition().nr_damaged, 1);
    drop(journal);
    let (journal, found) = Journal::open::<Saved>(directory.path(), |_| ()).unwrap();
    assert_eq!((found, journal.condition().nr_damaged), (whole, 0), "rewritten");
}

#[test]
fn damaged_record_of_another_boot_is_not_taken_for_one_of_this() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(NAME);
    let record = object(1, A, &7_u32).unwrap();
    let mut text = header("another", 1);
    text[30] ^= 1;
    text.extend(encode("another", 1, &record));
    fs::write(&path, &text).unwrap();
    let (journal, found) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    assert_eq!((found, journal.condition().nr_damaged), (BTreeMap::new(), 2));
}

#[test]
fn compaction_leaves_out_damage_and_the_dead() {
    let boot = boot_id();
    let record = |seq, key, settings: u32| object(seq, key, &settings).unwrap();
    let line = |number, object: &[u8]| encode(&boot, number, object);
    let mut damaged = line(3, &record(9, A, 9));
    let at = damaged.len() - 3;
    damaged[at] ^= 1;
    let text = [
        header(&boot, 5),
        line(1, &record(1, A, 1)),
        line(2, &record(2, B, 2)),
        damaged,
        line(4, &record(3, A, 3)),
        line(5, &record(u64::MAX, A, 4)),
    ]
    .concat();
    let kept = super::super::replay::compacted(&text, &boot, |_| true).unwrap();
    let same = |one: &[u8], other: &[u8]| {
        let value = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).unwrap();
        value(one) == value(other)
    };
    assert!(kept.len() == 2 && same(&kept[0], &record(3, A, 3)) && same(&kept[1], &record(2, B, 2)));
    let kept = super::super::replay::compacted(&text, &boot, |key| key != B).unwrap();
    assert_eq!(kept.len(), 1);
}
