//! Files with damaged bits, files of other versions, and what is told of them.

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
        assert!(replay.fault.is_some() && replay.nr_damaged > 0, "bit {bit}");
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
fn damaged_file_is_reported_and_kept_as_a_copy() {
    let directory = tempfile::tempdir().unwrap();
    let (text, _) = realistic(directory.path());
    let path = directory.path().join(NAME);
    let copy = super::super::state_file::copy(&path);
    for bit in (0..text.len() * 8).step_by(41) {
        let mut flipped = text.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &flipped).unwrap();
        let (journal, found) = Journal::open::<Saved>(directory.path(), |_| ()).unwrap();
        assert!(journal.condition().nr_damaged > 0, "bit {bit}");
        assert_eq!(fs::read(&copy).unwrap(), flipped, "bit {bit}");
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
    let record = Record::alone(1, A, 7_u32);
    let mut text = header("another").unwrap();
    text[30] ^= 1;
    text.extend(encode("another", &record).unwrap());
    fs::write(&path, &text).unwrap();
    let (journal, found) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    assert_eq!((found, journal.condition().nr_damaged), (BTreeMap::new(), 2));
    assert_eq!(fs::read(super::super::state_file::copy(&path)).unwrap(), text);
}

#[test]
fn file_of_version_1_is_read_and_rewritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(NAME);
    let old = format!(
        "{{\"gcgroupfs_settings\":1,\"boot_id\":\"{}\"}}\n\
         {{\"seq\":4,\"pid\":1,\"start_time\":10,\"settings\":1}}\n\n\
         {{\"seq\":5,\"pid\":2,\"start_time\":20,\"settings\":2}}\n{{\"seq\":6,\"pi",
        boot_id()
    );
    fs::write(&path, old).unwrap();
    let (journal, found) = Journal::open::<u32>(directory.path(), |_| ()).unwrap();
    assert_eq!(found, BTreeMap::from([(A, 1), (B, 2)]));
    assert_eq!(journal.condition(), Condition::default());
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.lines().count() == 3 && text.lines().all(|line| line.starts_with("{\"v\":2,\"crc\":")),
        "{text}"
    );
    append(&journal, A, 3);
    drop(journal);
    assert_eq!(reopen(directory.path()), BTreeMap::from([(A, 3), (B, 2)]));
}

#[test]
fn file_of_a_newer_version_is_kept_as_a_copy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(NAME);
    // As a daemon of version 3 with the checksums of this one.
    let body = format!("\"boot_id\":\"{}\"}}", boot_id());
    let crc = crc32fast::hash(format!("\n3\n{body}").as_bytes());
    let text = format!("{{\"v\":3,\"crc\":\"{crc:08x}\",{body}\nanything\n");
    fs::write(&path, &text).unwrap();
    assert_eq!(reopen(directory.path()), BTreeMap::new());
    assert_eq!(
        fs::read_to_string(super::super::state_file::copy(&path)).unwrap(),
        text
    );
}

#[test]
fn compaction_leaves_out_damage_and_renews_lines_of_version_1() {
    let boot = boot_id();
    let record = |seq, key, settings: u32| encode(&boot, &Record::alone(seq, key, settings)).unwrap();
    let mut damaged = record(9, A, 9);
    let at = damaged.len() - 3;
    damaged[at] ^= 1;
    let old = format!(
        "{{\"gcgroupfs_settings\":1,\"boot_id\":\"{boot}\"}}\n\
         {{\"seq\":1,\"pid\":1,\"start_time\":10,\"settings\":1}}\n\
         {{\"seq\":2,\"pid\":2,\"start_time\":20,\"settings\":2}}\n"
    );
    let text = [
        old.as_bytes(),
        &damaged,
        &record(3, A, 3),
        &record(u64::MAX, A, 4),
    ]
    .concat();
    let kept = super::super::replay::compacted(&text, &boot, |_| true).unwrap();
    let expected = [header(&boot).unwrap(), record(3, A, 3), record(2, B, 2)].concat();
    assert_eq!(String::from_utf8(kept), String::from_utf8(expected));
    let dead = super::super::replay::compacted(&text, &boot, |key| key != B).unwrap();
    assert_eq!(dead, [header(&boot).unwrap(), record(3, A, 3)].concat());
}
