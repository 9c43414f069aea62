use super::*;
use gcgroup_client::node::fixture;

/// Bytes of the smallest file: three blocks.
const SIZE: u64 = SMALLEST;

fn frame(time: u32) -> Frame {
    let mut snapshot = fixture::snapshot();
    snapshot.time = time.into();
    // Numbers that hardly compress, so that blocks fill.
    let mut number = u64::from(time);
    for key in 0..20 {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let stat = &mut snapshot.processes[0].usage.compute.stat;
        stat.insert(&format!("key{key}"), number);
    }
    Frame::new(&snapshot).unwrap()
}

/// Returns the key frames of all samples.
fn frames(path: &Path) -> Vec<Frame> {
    let recording = Recording::open(path).unwrap();
    let mut all: Vec<Frame> = Vec::new();
    for block in recording.blocks() {
        let mut state: Option<Frame> = None;
        let take = |next: Frame| {
            let frame = match state.take() {
                Some(mut state) => {
                    state.apply(next);
                    state
                }
                None => next,
            };
            all.push(frame.clone());
            state = Some(frame);
        };
        recording.for_each(block, take).unwrap();
    }
    all
}

fn times(path: &Path) -> Vec<u32> {
    // Written from whole numbers.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    frames(path).iter().map(|frame| frame.time as u32).collect()
}

#[test]
fn full_ring_keeps_the_latest_and_is_continued() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("record");
    let mut ring = Ring::open(&path, SIZE).unwrap();
    assert!(Ring::open(&path, SIZE).is_err(), "it is locked");
    (0..20).for_each(|time| ring.append(frame(time)).unwrap());
    assert_eq!(times(&path), Vec::from_iter(0..20));
    drop(ring);
    // The size of an existing file is kept. A new recorder begins a block.
    let mut ring = Ring::open(&path, 2 * SIZE).unwrap();
    (20..1000).for_each(|time| ring.append(frame(time)).unwrap());
    let kept = frames(&path);
    let first = 1000 - u32::try_from(kept.len()).unwrap();
    assert!((20..980).contains(&first), "{first}");
    assert_eq!(kept, Vec::from_iter((first..1000).map(frame)));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE);
}

#[test]
fn damage_ends_its_block_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("record");
    let mut ring = Ring::open(&path, SIZE).unwrap();
    (0..10).for_each(|time| ring.append(frame(time)).unwrap());
    let end = ring.shape.offset(1) + ring.open.as_ref().unwrap().length as u64;
    // As a write that was cut off leaves it.
    ring.file.write_all_at(&[7], end - 1).unwrap();
    drop(ring);
    assert_eq!(times(&path), Vec::from_iter(0..9));
    let mut ring = Ring::open(&path, SIZE).unwrap();
    (10..15).for_each(|time| ring.append(frame(time)).unwrap());
    assert_eq!(
        times(&path),
        (0..9).chain(10..15).collect::<Vec<_>>(),
        "the next block is read"
    );
    ring.file.write_all_at(&[7], ring.shape.offset(1) + 3).unwrap();
    assert_eq!(times(&path), Vec::from_iter(10..15));
}

#[test]
fn block_of_a_time_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("record");
    for first in [10, 20, 30] {
        let mut ring = Ring::open(&path, SIZE).unwrap();
        ring.append(frame(first)).unwrap();
    }
    let recording = Recording::open(&path).unwrap();
    let blocks = [0, 10, 19, 20, 35, u64::MAX].map(|time| recording.block_of(time).unwrap());
    assert_eq!(blocks, [1, 1, 1, 2, 3, 3]);
}

#[test]
fn sample_that_does_not_fit_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("record");
    let mut ring = Ring::open(&path, SIZE).unwrap();
    ring.append(frame(1)).unwrap();
    let mut snapshot = fixture::snapshot();
    let mut number = 1_u64;
    for key in 0..5000 {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let stat = &mut snapshot.processes[0].usage.compute.stat;
        stat.insert(&format!("key{key}"), number);
    }
    let error = ring.append(Frame::new(&snapshot).unwrap()).unwrap_err();
    assert!(error.to_string().contains("--size"), "{error}");
    ring.append(frame(2)).unwrap();
    assert_eq!(times(&path), [1, 2]);
}

#[test]
fn text_of_any_length_round_trips() {
    let mut number = 1_u64;
    for length in [0, 1, 100, 4095, 4096, 70_000, 1 << 20] {
        let random: Vec<u8> = std::iter::repeat_with(|| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            number.to_be_bytes()[0]
        })
        .take(length)
        .collect();
        for text in [random, vec![b'a'; length]] {
            let mut stream = Compress::new(Compression::default(), false);
            let mut inflate = flate2::Decompress::new(false);
            for _ in 0..3 {
                let part = deflate(&mut stream, &text).unwrap();
                assert_eq!(read::text(&mut inflate, &part).as_ref(), Some(&text), "{length}");
            }
        }
    }
}

#[test]
fn other_files_are_refused_and_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("text");
    for text in [
        "x".repeat(10),
        "x".repeat(100_000),
        "gcgroup-record 2".repeat(9000),
    ] {
        std::fs::write(&path, &text).unwrap();
        assert!(Ring::open(&path, SIZE).is_err());
        assert!(Recording::open(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
    assert!(Recording::open(&directory.path().join("missing")).is_err());
}
