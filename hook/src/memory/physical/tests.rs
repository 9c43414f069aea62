use super::*;
use crate::device::LocalDevice;

fn of(kind: Kind, size: u64) -> Entry {
    Entry::new(kind, size, LocalDevice::of(0).unwrap(), 0, 0)
}

fn entry(size: u64) -> Entry {
    of(Kind::Vmm, size)
}

fn freed(physical: &mut Physical, handle: u64) -> Option<Entry> {
    physical.release(handle, &mut Gone::default())?.1
}

fn unmap(physical: &mut Physical, address: u64, length: u64) -> Vec<Entry> {
    let mut gone = Gone::default();
    let taken = physical.take_mappings(address, length);
    physical.unmapped(&taken, &mut gone);
    all(&gone.freed)
}

fn all(entries: &Few<Entry>) -> Vec<Entry> {
    let mut all = Vec::new();
    entries.for_each(|entry| all.push(*entry));
    all
}

fn is_empty(physical: &Physical) -> bool {
    physical.objects.is_empty()
        && physical.handles.is_empty()
        && physical.mappings.is_empty()
        && physical.bindings.is_empty()
}

fn region(start: u64, extent: u64) -> Region {
    Region {
        group: [0; 3],
        start: [start, 0, 0],
        extent: [extent, 1, 1],
    }
}

#[test]
fn memory_lives_as_long_as_a_handle_or_a_mapping_holds_it() {
    let mut physical = Physical::default();
    physical.add(7, entry(100));
    physical.map(0x1_0000, 0x1000, 7, &mut Gone::default());
    physical.map(0x2_0000, 0x1000, 7, &mut Gone::default());
    assert_eq!(freed(&mut physical, 7), None);
    physical.add(7, entry(200));
    assert_eq!(
        freed(&mut physical, 7),
        Some(entry(200)),
        "the number was another's by then"
    );
    assert_eq!(unmap(&mut physical, 0x1_0000, 0x1000), []);
    assert_eq!(unmap(&mut physical, 0x2_0000, 0x1000), [entry(100)]);
    assert!(is_empty(&physical));
}

#[test]
fn a_retained_handle_is_one_more_hold() {
    let mut physical = Physical::default();
    physical.add(7, entry(100));
    physical.map(0x1_0000, 0x1000, 7, &mut Gone::default());
    physical.retain(0x1_0800, 9);
    physical.retain(0x1_1000, 11);
    assert_eq!(freed(&mut physical, 11), None, "nothing is mapped there");
    assert_eq!(unmap(&mut physical, 0x1_0000, 0x1000), []);
    assert_eq!(freed(&mut physical, 9), None);
    assert_eq!(freed(&mut physical, 7), Some(entry(100)));
    assert!(is_empty(&physical));
}

#[test]
fn what_is_retained_after_its_last_handle_is_had_by_the_new_one() {
    let mut physical = Physical::default();
    physical.add(7, entry(100));
    physical.map(0x1_0000, 0x1000, 7, &mut Gone::default());
    assert_eq!(freed(&mut physical, 7), None);
    physical.retain(0x1_0000, 8);
    assert_eq!(unmap(&mut physical, 0x1_0000, 0x1000), []);
    assert_eq!(freed(&mut physical, 8), Some(entry(100)));
    assert!(is_empty(&physical));
}

#[test]
fn a_call_that_the_driver_refused_changed_nothing() {
    let mut physical = Physical::default();
    physical.add(7, entry(100));
    let released = physical.release(7, &mut Gone::default()).unwrap();
    physical.undo(7, released);
    assert!(physical.hold(7));
    let released = physical.release(7, &mut Gone::default()).unwrap();
    assert_eq!(released.1, None);
    physical.undo(7, released);
    physical.map(0x1_0000, 0x1000, 7, &mut Gone::default());
    let taken = physical.take_mappings(0x1_0000, 0x1000);
    assert_eq!(physical.at(0x1_0000), None);
    physical.put_back(&taken);
    assert_eq!(unmap(&mut physical, 0x1_0000, 0x1000), []);
    assert_eq!(freed(&mut physical, 7), None);
    assert_eq!(freed(&mut physical, 7), Some(entry(100)));
    assert!(!physical.hold(7) && is_empty(&physical));
}

#[test]
fn a_handle_that_is_given_out_anew_ends_what_had_it() {
    let mut physical = Physical::default();
    assert_eq!(physical.add(7, entry(100)), Gone::default());
    assert_eq!(all(&physical.add(7, entry(200)).freed), [entry(100)]);
    assert_eq!(freed(&mut physical, 7), Some(entry(200)));
}

#[test]
fn one_unmapping_may_end_several_mappings() {
    let mut physical = Physical::default();
    physical.add(1, entry(10));
    physical.add(2, entry(20));
    physical.map(0x1_0000, 0x1_0000, 1, &mut Gone::default());
    physical.map(0x2_0000, 0x1_0000, 2, &mut Gone::default());
    assert_eq!(freed(&mut physical, 1), None);
    assert_eq!(unmap(&mut physical, 0x1_0000, 0x2_0000), [entry(10)]);
    assert_eq!(freed(&mut physical, 2), Some(entry(20)));
}

#[test]
fn imported_memory_is_as_large_as_its_largest_mapping() {
    let mut physical = Physical::default();
    physical.add(7, of(Kind::Ipc, 0));
    assert_eq!(
        physical.map(0x1_0000, 0x1000, 7, &mut Gone::default()),
        Some(of(Kind::Ipc, 0x1000))
    );
    assert_eq!(physical.map(0x2_0000, 0x1000, 7, &mut Gone::default()), None);
    assert_eq!(
        physical.map(0x3_0000, 0x1800, 7, &mut Gone::default()),
        Some(of(Kind::Ipc, 0x800))
    );
    assert_eq!(unmap(&mut physical, 0x1_0000, 0x3_0000), []);
    assert_eq!(freed(&mut physical, 7), Some(of(Kind::Ipc, 0x1800)));
}

#[test]
fn what_a_multicast_object_binds_is_held_until_that_is_gone() {
    let mut physical = Physical::default();
    physical.add(1, of(Kind::Multicast, 0));
    physical.add(2, entry(100));
    let (multicast, memory) = (physical.of_handle(1).unwrap(), physical.of_handle(2).unwrap());
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
    physical.map(0x1_0000, 0x1000, 1, &mut Gone::default());
    assert_eq!(freed(&mut physical, 1), None, "mapped still");
    let taken = physical.take_mappings(0x1_0000, 0x1000);
    physical.unmapped(&taken, &mut gone);
    assert_eq!(all(&gone.freed), [of(Kind::Multicast, 0), entry(100)]);
    assert_eq!(all(&gone.hidden), [shown]);
    assert!(is_empty(&physical));
}

#[test]
fn tiles_of_a_sparse_array_hold_their_memory_until_a_stream_has_unmapped_them() {
    let mut physical = Physical::default();
    let mut gone = Gone::default();
    physical.add(1, entry(10));
    physical.add(2, entry(20));
    let array = Binder::Array(77);
    for (handle, start) in [(1, 0), (2, 64)] {
        let memory = physical.of_handle(handle).unwrap();
        physical.bind(array, region(start, 64), memory, None, &mut gone);
        assert_eq!(freed(&mut physical, handle), None);
    }
    physical.unbind_after(5, array, &region(0, 32));
    physical.passed(5, &mut gone);
    assert_eq!(gone, Gone::default(), "half of it is there still");
    physical.unbind_after(5, array, &region(0, 32));
    physical.unbind_after(5, array, &region(32, 32));
    physical.passed(6, &mut gone);
    assert_eq!(gone, Gone::default());
    physical.passed(5, &mut gone);
    assert_eq!(all(&gone.freed), [entry(10)]);
    physical.add(3, entry(30));
    let memory = physical.of_handle(3).unwrap();
    physical.bind(array, region(64, 64), memory, None, &mut gone);
    assert_eq!(all(&gone.freed), [entry(10), entry(20)], "another in its place");
    physical.unbind_all(array, &mut gone);
    assert_eq!(freed(&mut physical, 3), Some(entry(30)));
    assert!(is_empty(&physical));
}
