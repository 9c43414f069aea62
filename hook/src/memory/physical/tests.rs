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

/// The sequences of calls that handlers make.
impl Physical {
    fn created(&mut self, handle: u64, entry: Entry) -> Gone {
        let mut gone = Gone::default();
        self.add(handle, entry, &mut gone);
        gone
    }

    fn maps(&mut self, address: u64, length: u64, handle: u64) -> Option<Entry> {
        let (number, is_imported) = self.hold(handle)?;
        let mut gone = Gone::default();
        self.map((address, length, number), &mut gone);
        assert_eq!(gone, Gone::default(), "nothing was there");
        is_imported.then(|| self.grow(number, length)).flatten()
    }

    fn unmaps(&mut self, address: u64, length: u64) -> Gone {
        let mut gone = Gone::default();
        for (.., number) in self.take_mappings(address, length) {
            self.let_go(number, &mut gone);
        }
        gone
    }

    fn releases(&mut self, handle: u64) -> Option<Released> {
        self.release(handle, &mut Gone::default())
    }

    fn is_empty(&self) -> bool {
        self.objects.is_empty()
            && self.handles.is_empty()
            && self.mapped.is_empty()
            && self.bindings.is_empty()
    }
}

fn freed(physical: &mut Physical, handle: u64) -> Option<Entry> {
    physical.releases(handle)?.1
}

fn unmap(physical: &mut Physical, address: u64, length: u64) -> Vec<Entry> {
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
    let mut physical = Physical::default();
    physical.created(7, entry(100));
    physical.maps(0x1_0000, 0x1000, 7);
    physical.maps(0x2_0000, 0x1000, 7);
    assert_eq!(freed(&mut physical, 7), None);
    physical.created(7, entry(200));
    assert_eq!(
        freed(&mut physical, 7),
        Some(entry(200)),
        "the handle referred to other memory by then"
    );
    assert_eq!(unmap(&mut physical, 0x1_0000, 0x1000), []);
    assert_eq!(unmap(&mut physical, 0x2_0000, 0x1000), [entry(100)]);
    assert!(physical.is_empty());
}

#[test]
fn retained_handle_is_another_hold() {
    let mut physical = Physical::default();
    physical.created(7, entry(100));
    physical.maps(0x1_0000, 0x1000, 7);
    physical.retain(0x1_0800, 9);
    physical.retain(0x1_1000, 11);
    assert_eq!(freed(&mut physical, 11), None, "nothing is mapped there");
    assert_eq!(unmap(&mut physical, 0x1_0000, 0x1000), []);
    assert_eq!(freed(&mut physical, 9), None);
    assert_eq!(freed(&mut physical, 7), Some(entry(100)));
    assert!(physical.is_empty());
}

#[test]
fn memory_retained_after_its_last_handle_has_a_new_one() {
    let mut physical = Physical::default();
    physical.created(7, entry(100));
    physical.maps(0x1_0000, 0x1000, 7);
    assert_eq!(freed(&mut physical, 7), None);
    physical.retain(0x1_0000, 8);
    assert_eq!(unmap(&mut physical, 0x1_0000, 0x1000), []);
    assert_eq!(freed(&mut physical, 8), Some(entry(100)));
    assert!(physical.is_empty());
}

#[test]
fn undone_calls_change_nothing() {
    let mut physical = Physical::default();
    physical.created(7, entry(100));
    let released = physical.releases(7).unwrap();
    physical.undo(7, released);
    assert!(physical.hold_handle(7));
    let released = physical.releases(7).unwrap();
    assert_eq!(released.1, None);
    physical.undo(7, released);
    physical.maps(0x1_0000, 0x1000, 7);
    let taken = physical.take_mappings(0x1_0000, 0x1000);
    assert_eq!(physical.at(0x1_0000), None);
    for range in taken {
        physical.map(range, &mut Gone::default());
    }
    assert_eq!(unmap(&mut physical, 0x1_0000, 0x1000), []);
    assert_eq!(freed(&mut physical, 7), None);
    assert_eq!(freed(&mut physical, 7), Some(entry(100)));
    assert!(!physical.hold_handle(7));
    assert!(physical.is_empty());
}

#[test]
fn reused_handle_frees_its_former_object() {
    let mut physical = Physical::default();
    assert_eq!(physical.created(7, entry(100)), Gone::default());
    assert_eq!(physical.created(7, entry(200)).freed, [entry(100)]);
    assert_eq!(freed(&mut physical, 7), Some(entry(200)));
}

#[test]
fn one_unmap_may_end_several_mappings() {
    let mut physical = Physical::default();
    physical.created(1, entry(10));
    physical.created(2, entry(20));
    physical.maps(0x1_0000, 0x1_0000, 1);
    physical.maps(0x2_0000, 0x1_0000, 2);
    assert_eq!(freed(&mut physical, 1), None);
    assert_eq!(unmap(&mut physical, 0x1_0000, 0x2_0000), [entry(10)]);
    assert_eq!(freed(&mut physical, 2), Some(entry(20)));
}

#[test]
fn imported_memory_has_the_size_of_its_largest_mapping() {
    let mut physical = Physical::default();
    physical.created(7, of(Kind::Ipc, 0));
    assert_eq!(physical.maps(0x1_0000, 0x1000, 7), Some(of(Kind::Ipc, 0x1000)));
    assert_eq!(physical.maps(0x2_0000, 0x1000, 7), None);
    assert_eq!(physical.maps(0x3_0000, 0x1800, 7), Some(of(Kind::Ipc, 0x800)));
    assert_eq!(unmap(&mut physical, 0x1_0000, 0x3_0000), []);
    assert_eq!(freed(&mut physical, 7), Some(of(Kind::Ipc, 0x1800)));
}

#[test]
fn multicast_object_holds_bound_memory_until_freed() {
    let mut physical = Physical::default();
    physical.created(1, of(Kind::Multicast, 0));
    physical.created(2, entry(100));
    let multicast = physical.of_handle(1).unwrap();
    let memory = physical.of_handle(2).unwrap();
    let mut gone = Gone::default();
    let shown = of(Kind::Multicast, 100);
    physical.bind(
        Binder::Multicast(multicast),
        region(0, 100),
        memory,
        Some(shown),
        &mut gone,
    );
    assert_eq!(freed(&mut physical, 2), None);
    physical.maps(0x1_0000, 0x1000, 1);
    assert_eq!(freed(&mut physical, 1), None, "still mapped");
    let gone = physical.unmaps(0x1_0000, 0x1000);
    assert_eq!(gone.freed, [of(Kind::Multicast, 0), entry(100)]);
    assert_eq!(gone.hidden, [shown]);
    assert!(physical.is_empty());
}

#[test]
fn sparse_tiles_hold_memory_until_the_stream_unmaps_them() {
    let mut physical = Physical::default();
    let mut gone = Gone::default();
    physical.created(1, entry(10));
    physical.created(2, entry(20));
    let array = Binder::Array(77);
    for (handle, start) in [(1, 0), (2, 64)] {
        let memory = physical.of_handle(handle).unwrap();
        physical.bind(array, region(start, 64), memory, None, &mut gone);
        assert_eq!(freed(&mut physical, handle), None);
    }
    let [one, other] = [5, 6].map(Stream::of_test);
    let reached = |stream: &Stream, last: u64, physical: &mut Physical, gone: &mut Gone| {
        let streams = std::slice::from_ref(stream);
        physical.passed(Reached { streams, last }, gone);
    };
    physical.unbind_after(one.order_of_test(1), array, &region(0, 32));
    reached(&one, 1, &mut physical, &mut gone);
    assert_eq!(gone, Gone::default(), "half of it is still bound");
    physical.unbind_after(one.order_of_test(2), array, &region(0, 64));
    assert_eq!(physical.waits_for(), [one]);
    reached(&other, 2, &mut physical, &mut gone);
    reached(&one, 1, &mut physical, &mut gone);
    assert_eq!(gone, Gone::default(), "of another stream, or after the query");
    reached(&one, 2, &mut physical, &mut gone);
    assert_eq!(gone.freed, [entry(10)]);
    physical.created(3, entry(30));
    let memory = physical.of_handle(3).unwrap();
    physical.bind(array, region(64, 64), memory, None, &mut gone);
    assert_eq!(gone.freed, [entry(10), entry(20)], "replaced by another");
    physical.unbind_all(array, &mut gone);
    assert_eq!(freed(&mut physical, 3), Some(entry(30)));
    assert!(physical.is_empty());
}

#[test]
fn many_handles_hold_one_object() {
    let mut physical = Physical::default();
    let others: Vec<u64> = (8..64).collect();
    physical.created(7, entry(100));
    physical.maps(0x1_0000, 0x1000, 7);
    for handle in &others {
        physical.retain(0x1_0000, *handle);
        assert_eq!(physical.maps(0x10_0000 + 0x1000 * handle, 0x1000, *handle), None);
    }
    for handle in &others {
        assert_eq!(freed(&mut physical, *handle), None);
        assert_eq!(unmap(&mut physical, 0x10_0000 + 0x1000 * handle, 0x1000), []);
    }
    assert_eq!(freed(&mut physical, 7), None);
    assert_eq!(freed(&mut physical, others[0]), None, "all handles are gone");
    assert_eq!(unmap(&mut physical, 0x1_0000, 0x1000), [entry(100)]);
    assert!(physical.is_empty());
}

#[test]
fn mapping_is_found_from_its_first_to_its_last_byte() {
    let mut physical = Physical::default();
    physical.created(1, entry(10));
    physical.created(2, entry(20));
    physical.maps(0x20_0000, 0x20_0000, 1);
    physical.maps(0x40_0000, 0x1000, 2);
    let of = |handle| physical.of_handle(handle);
    for (address, handle) in [(0x20_0000, 1), (0x3f_ffff, 1), (0x40_0000, 2), (0x40_0fff, 2)] {
        assert_eq!(physical.at(address), of(handle), "{address:#x}");
    }
    assert_eq!((physical.at(0x1f_ffff), physical.at(0x40_1000)), (None, None));
}
