use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gcgroup_abi::Kind;

use super::*;
use crate::memory::stream::Stream;
use crate::shared::device::LocalDevice;

fn of(kind: Kind, size: u64) -> Entry {
    Entry::new(kind, size, LocalDevice::of(0).unwrap(), 0, 0)
}

fn entry(size: u64) -> Entry {
    of(Kind::Vmm, size)
}

/// The sequences of calls that handlers make, with all shards locked where an operation is rare.
impl Physical {
    fn created(&self, handle: u64, entry: Entry) -> Gone {
        let mut gone = Gone::default();
        let before = self.add(handle, || entry);
        before
            .into_iter()
            .for_each(|before| self.all().displaced(before, &mut gone));
        gone
    }

    fn maps(&self, address: u64, length: u64, handle: u64) -> Option<Entry> {
        let held = self.hold(handle);
        let (number, is_imported) = held.unwrap_or_else(|Rare| self.all().hold(handle))?;
        let more = is_imported.then(|| self.grow(number, length)).flatten();
        let before = self.map(address, length, number);
        assert_eq!(before, None, "nothing was there");
        more
    }

    fn gone(&self, number: Number, gone: &mut Gone) {
        match self.let_go(number) {
            Ok(freed) => freed.into_iter().for_each(|entry| gone.freed.push(entry)),
            Err(Rare) => self.all().let_go(number, gone),
        }
    }

    fn unmaps(&self, address: u64, length: u64) -> Gone {
        let mut gone = Gone::default();
        let taken = self.take_mappings(address, length);
        taken
            .iter()
            .for_each(|(.., number)| self.gone(*number, &mut gone));
        gone
    }

    fn releases(&self, handle: u64) -> Option<Released> {
        let released = self.release(handle);
        released.unwrap_or_else(|Rare| self.all().release(handle, &mut Gone::default()))
    }

    fn is_empty(&self) -> bool {
        let held = self.held.iter().map(|shard| shard.0.lock());
        let mapped = self.mapped.iter().map(|shard| shard.0.lock());
        held.into_iter()
            .all(|held| held.objects.is_empty() && held.handles.is_empty())
            && mapped.into_iter().all(|mappings| mappings.is_empty())
            && self.bindings.lock().is_empty()
    }
}

fn freed(physical: &Physical, handle: u64) -> Option<Entry> {
    physical.releases(handle)?.1
}

fn unmap(physical: &Physical, address: u64, length: u64) -> Vec<Entry> {
    physical.unmaps(address, length).freed
}

fn region(start: u64, extent: u64) -> Region {
    Region {
        group: [0; 3],
        start: [start, 0, 0],
        extent: [extent, 1, 1],
    }
}

#[test]
fn memory_is_freed_with_its_last_handle_or_mapping() {
    let physical = Physical::default();
    physical.created(7, entry(100));
    physical.maps(0x1_0000, 0x1000, 7);
    physical.maps(0x2_0000, 0x1000, 7);
    assert_eq!(freed(&physical, 7), None);
    physical.created(7, entry(200));
    assert_eq!(
        freed(&physical, 7),
        Some(entry(200)),
        "the handle referred to other memory by then"
    );
    assert_eq!(unmap(&physical, 0x1_0000, 0x1000), []);
    assert_eq!(unmap(&physical, 0x2_0000, 0x1000), [entry(100)]);
    assert!(physical.is_empty());
}

#[test]
fn retained_handle_is_another_hold() {
    let physical = Physical::default();
    physical.created(7, entry(100));
    physical.maps(0x1_0000, 0x1000, 7);
    physical.all().retain(0x1_0800, 9);
    physical.all().retain(0x1_1000, 11);
    assert_eq!(freed(&physical, 11), None, "nothing is mapped there");
    assert_eq!(unmap(&physical, 0x1_0000, 0x1000), []);
    assert_eq!(freed(&physical, 9), None);
    assert_eq!(freed(&physical, 7), Some(entry(100)));
    assert!(physical.is_empty());
}

#[test]
fn memory_retained_after_its_last_handle_has_a_new_one() {
    let physical = Physical::default();
    physical.created(7, entry(100));
    physical.maps(0x1_0000, 0x1000, 7);
    assert_eq!(freed(&physical, 7), None);
    physical.all().retain(0x1_0000, 8);
    assert_eq!(unmap(&physical, 0x1_0000, 0x1000), []);
    assert_eq!(freed(&physical, 8), Some(entry(100)));
    assert!(physical.is_empty());
}

#[test]
fn undone_calls_change_nothing() {
    let physical = Physical::default();
    physical.created(7, entry(100));
    let released = physical.releases(7).unwrap();
    physical.all().undo(7, released);
    assert!(physical.all().hold_handle(7));
    let released = physical.releases(7).unwrap();
    assert_eq!(released.1, None);
    physical.all().undo(7, released);
    physical.maps(0x1_0000, 0x1000, 7);
    let taken = physical.take_mappings(0x1_0000, 0x1000);
    assert_eq!(physical.all().at(0x1_0000), None);
    physical.put_back(&taken);
    assert_eq!(unmap(&physical, 0x1_0000, 0x1000), []);
    assert_eq!(freed(&physical, 7), None);
    assert_eq!(freed(&physical, 7), Some(entry(100)));
    assert!(!physical.all().hold_handle(7));
    assert!(physical.is_empty());
}

#[test]
fn reused_handle_frees_its_former_object() {
    let physical = Physical::default();
    assert_eq!(physical.created(7, entry(100)), Gone::default());
    assert_eq!(physical.created(7, entry(200)).freed, [entry(100)]);
    assert_eq!(freed(&physical, 7), Some(entry(200)));
}

#[test]
fn one_unmap_may_end_several_mappings() {
    let physical = Physical::default();
    physical.created(1, entry(10));
    physical.created(2, entry(20));
    physical.maps(0x1_0000, 0x1_0000, 1);
    physical.maps(0x2_0000, 0x1_0000, 2);
    assert_eq!(freed(&physical, 1), None);
    assert_eq!(unmap(&physical, 0x1_0000, 0x2_0000), [entry(10)]);
    assert_eq!(freed(&physical, 2), Some(entry(20)));
}

#[test]
fn imported_memory_has_the_size_of_its_largest_mapping() {
    let physical = Physical::default();
    physical.created(7, of(Kind::Ipc, 0));
    assert_eq!(physical.maps(0x1_0000, 0x1000, 7), Some(of(Kind::Ipc, 0x1000)));
    assert_eq!(physical.maps(0x2_0000, 0x1000, 7), None);
    assert_eq!(physical.maps(0x3_0000, 0x1800, 7), Some(of(Kind::Ipc, 0x800)));
    assert_eq!(unmap(&physical, 0x1_0000, 0x3_0000), []);
    assert_eq!(freed(&physical, 7), Some(of(Kind::Ipc, 0x1800)));
}

#[test]
fn multicast_object_holds_bound_memory_until_freed() {
    let physical = Physical::default();
    physical.created(1, of(Kind::Multicast, 0));
    physical.created(2, entry(100));
    let multicast = physical.all().of_handle(1).unwrap();
    let memory = physical.all().of_handle(2).unwrap();
    let mut gone = Gone::default();
    let shown = of(Kind::Multicast, 100);
    physical.all().bind(
        Binder::Multicast(multicast),
        region(0, 100),
        memory,
        Some(shown),
        &mut gone,
    );
    assert_eq!(freed(&physical, 2), None);
    physical.maps(0x1_0000, 0x1000, 1);
    assert_eq!(freed(&physical, 1), None, "still mapped");
    let gone = physical.unmaps(0x1_0000, 0x1000);
    assert_eq!(gone.freed, [of(Kind::Multicast, 0), entry(100)]);
    assert_eq!(gone.hidden, [shown]);
    assert!(physical.is_empty());
}

#[test]
fn sparse_tiles_hold_memory_until_the_stream_unmaps_them() {
    let physical = Physical::default();
    let mut gone = Gone::default();
    physical.created(1, entry(10));
    physical.created(2, entry(20));
    let array = Binder::Array(77);
    for (handle, start) in [(1, 0), (2, 64)] {
        let memory = physical.all().of_handle(handle).unwrap();
        physical
            .all()
            .bind(array, region(start, 64), memory, None, &mut gone);
        assert_eq!(freed(&physical, handle), None);
    }
    physical
        .all()
        .unbind_after(Stream::of_test(5), array, &region(0, 32));
    physical.all().passed(Stream::of_test(5), &mut gone);
    assert_eq!(gone, Gone::default(), "half of it is still bound");
    physical
        .all()
        .unbind_after(Stream::of_test(5), array, &region(0, 32));
    physical
        .all()
        .unbind_after(Stream::of_test(5), array, &region(32, 32));
    physical.all().passed(Stream::of_test(6), &mut gone);
    assert_eq!(gone, Gone::default());
    physical.all().passed(Stream::of_test(5), &mut gone);
    assert_eq!(gone.freed, [entry(10)]);
    physical.created(3, entry(30));
    let memory = physical.all().of_handle(3).unwrap();
    physical
        .all()
        .bind(array, region(64, 64), memory, None, &mut gone);
    assert_eq!(gone.freed, [entry(10), entry(20)], "replaced by another");
    physical.all().unbind_all(array, &mut gone);
    assert_eq!(freed(&physical, 3), Some(entry(30)));
    assert!(physical.is_empty());
}

#[test]
fn handles_of_different_shards_hold_one_object() {
    let physical = Physical::default();
    let shard = |handle| shard_of(handle);
    let others: Vec<u64> = (0..64)
        .map(|number| number << 21)
        .filter(|handle| shard(*handle) != shard(7))
        .collect();
    assert!(others.len() > 40);
    physical.created(7, entry(100));
    physical.maps(0x1_0000, 0x1000, 7);
    for handle in &others {
        physical.all().retain(0x1_0000, *handle);
        assert_eq!(physical.maps(0x10_0000 + handle, 0x1000, *handle), None);
    }
    for handle in &others {
        assert_eq!(freed(&physical, *handle), None);
        assert_eq!(unmap(&physical, 0x10_0000 + handle, 0x1000), []);
    }
    assert_eq!(freed(&physical, 7), None);
    assert_eq!(freed(&physical, others[0]), None, "all handles are gone");
    assert_eq!(unmap(&physical, 0x1_0000, 0x1000), [entry(100)]);
    assert!(physical.is_empty());
}

/// Handles and addresses pass from thread to thread and are reused as soon as they are free.
#[test]
fn racing_threads_free_each_object_once() {
    const EACH: u64 = 4000;
    let physical = Physical::default();
    let names = Mutex::new((1..=80_u64).map(|number| number << 14).collect::<Vec<_>>());
    let blocks = Mutex::new(Vec::new());
    let freed = AtomicU64::new(0);
    let free = |(handles, addresses, is_unmapped_first): (Vec<u64>, Vec<u64>, bool)| {
        let mut gone = Gone::default();
        let mut unmap = || {
            for address in &addresses {
                physical
                    .unmaps(*address, 0x1000)
                    .freed
                    .iter()
                    .for_each(|entry| gone.freed.push(*entry));
            }
        };
        let release = || {
            handles
                .iter()
                .filter_map(|handle| self::freed(&physical, *handle))
        };
        let mut released = Vec::new();
        if is_unmapped_first {
            unmap();
            released.extend(release());
        } else {
            released.extend(release());
            unmap();
        }
        released.extend(gone.freed);
        assert_eq!(released.len(), 1);
        freed.fetch_add(released[0].size, Relaxed);
        names.lock().extend(handles.into_iter().chain(addresses));
    };
    std::thread::scope(|scope| {
        for number in 0..4_u64 {
            let (names, blocks, free, physical) = (&names, &blocks, &free, &physical);
            scope.spawn(move || {
                let mut random = number + 1;
                for round in 1..=EACH {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let mut taken = {
                        let mut names = names.lock();
                        let rest = names.len() - 5;
                        names.split_off(rest)
                    };
                    let (handles, addresses) = taken.split_at_mut(2);
                    assert_eq!(physical.created(handles[0], entry(round)), Gone::default());
                    addresses.iter().for_each(|address| {
                        physical.maps(*address, 0x1000, handles[0]);
                    });
                    if random.is_multiple_of(3) {
                        physical.all().retain(addresses[1], handles[1]);
                    }
                    let block = if random.is_multiple_of(3) {
                        (handles.to_vec(), addresses.to_vec(), random.is_multiple_of(2))
                    } else {
                        names.lock().push(handles[1]);
                        (vec![handles[0]], addresses.to_vec(), random.is_multiple_of(2))
                    };
                    let other = {
                        let mut blocks = blocks.lock();
                        blocks.push(block);
                        let at = usize::try_from(random >> 32).unwrap() % blocks.len();
                        (blocks.len() > 3).then(|| blocks.swap_remove(at))
                    };
                    other.into_iter().for_each(free);
                }
            });
        }
    });
    blocks.into_inner().into_iter().for_each(free);
    assert_eq!(freed.load(Relaxed), 4 * EACH * (EACH + 1) / 2);
    assert!(physical.is_empty());
}
