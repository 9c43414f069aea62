//! Steps of a sequence.

use proptest::prelude::*;

use super::MIB;

/// One step. Numbers that select an existing object are taken modulo the number of objects.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Linear(u64),
    Managed(u64),
    Pitched(u64, u64),
    FromPool { pool: usize, bytes: u64, stream: usize },
    CreatePool(usize),
    DestroyPool(usize),
    Trim(usize, u64),
    Threshold(usize, u64),
    Physical(u64),
    Map(usize, usize),
    Unmap(usize, usize),
    Retain(usize),
    Release(usize),
    Array(u64, u64),
    Array3d(u64, u64, u64),
    Mipmapped(u64, u32),
    Host(u64),
    Register(usize),
    Free(usize),
    FreeTwice(usize),
    FreeWrongly(usize, usize),
    FreeUnknown(u64, usize),
    Nowhere(usize),
    Synchronize(usize),
    SecondContext,
    OtherContext,
    DestroySecondContext,
    Limit(Option<u64>),
}

/// Calls that free memory; their first argument is the address or handle.
pub(super) const FREEING: &[&str] = &[
    "cuMemFree_v2 {}",
    "cuMemFreeAsync {} 0",
    "cuMemFreeHost {}",
    "cuMemHostUnregister {}",
    "cuArrayDestroy {}",
    "cuMipmappedArrayDestroy {}",
    "cuMemRelease {}",
    "cuIpcCloseMemHandle {}",
];

/// Allocations with a null out-pointer.
pub(super) const NOWHERE: &[&str] = &[
    "cuMemAlloc_v2 0 4096",
    "cuMemAllocManaged 0 4096 1",
    "cuMemAllocPitch_v2 0 0 4096 2 4",
    "cuMemAllocAsync 0 4096 0",
    "cuMemAllocFromPoolAsync 0 4096 0 0",
    "cuMemCreate 0 2097152 &props 0",
    "cuMemCreate &nothing 2097152 0 0",
    "cuArrayCreate_v2 0 &flat",
    "cuArrayCreate_v2 &nothing 0",
    "cuMipmappedArrayCreate 0 &deep 1",
    "cuMemHostAlloc 0 4096 0",
    "cuMemHostRegister_v2 0 4096 0",
    "cuMemPoolCreate 0 &props",
    "cuMemPoolCreate &nothing 0",
];

pub(super) fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 1..4096_u64,
        3 => 1..40 * MIB,
        1 => Just(0_u64),
        1 => (1_u64..20).prop_map(|number| number * 2 * MIB),
        1 => prop_oneof![Just(u64::MAX), Just(1_u64 << 63), Just(17_u64 << 30)],
    ]
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let any = || 0..1000_usize;
    let allocate = prop_oneof![
        2 => size().prop_map(Step::Linear),
        1 => size().prop_map(Step::Managed),
        1 => (size(), 0..200_u64).prop_map(|(width, rows)| Step::Pitched(width, rows)),
        3 => (any(), size(), any()).prop_map(|(pool, bytes, stream)| Step::FromPool { pool, bytes, stream }),
        2 => (0..12_u64).prop_map(|pages| Step::Physical(pages * 2 * MIB)),
        1 => size().prop_map(Step::Physical),
        1 => (0..5000_u64, 0..2000_u64).prop_map(|(width, height)| Step::Array(width, height)),
        1 => (0..300_u64, 0..300_u64, 0..20_u64).prop_map(|(w, h, d)| Step::Array3d(w, h, d)),
        1 => (0..3000_u64, 0..14_u32).prop_map(|(width, levels)| Step::Mipmapped(width, levels)),
        1 => (0..9 * MIB).prop_map(Step::Host),
        1 => any().prop_map(Step::Register),
    ];
    let free = prop_oneof![
        6 => any().prop_map(Step::Free),
        1 => any().prop_map(Step::FreeTwice),
        2 => (any(), any()).prop_map(|(block, how)| Step::FreeWrongly(block, how)),
        1 => (prop::num::u64::ANY, any()).prop_map(|(address, how)| Step::FreeUnknown(address, how)),
        1 => (0..FREEING.len()).prop_map(|how| Step::FreeUnknown(0, how)),
        1 => any().prop_map(Step::Nowhere),
        3 => any().prop_map(Step::Release),
    ];
    let other = prop_oneof![
        2 => any().prop_map(Step::CreatePool),
        2 => any().prop_map(Step::DestroyPool),
        2 => (any(), prop_oneof![Just(0), 1..100 * MIB]).prop_map(|(pool, keep)| Step::Trim(pool, keep)),
        1 => (any(), 0..100 * MIB).prop_map(|(pool, keep)| Step::Threshold(pool, keep)),
        5 => (any(), any()).prop_map(|(object, place)| Step::Map(object, place)),
        4 => (any(), 1..4_usize).prop_map(|(place, count)| Step::Unmap(place, count)),
        2 => any().prop_map(Step::Retain),
        3 => any().prop_map(Step::Synchronize),
        1 => Just(Step::SecondContext),
        1 => Just(Step::OtherContext),
        1 => Just(Step::DestroySecondContext),
        3 => prop_oneof![Just(None), (0..200 * MIB).prop_map(Some)].prop_map(Step::Limit),
    ];
    prop_oneof![5 => allocate, 4 => free, 3 => other]
}
