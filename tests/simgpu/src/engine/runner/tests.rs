use std::sync::mpsc;

use super::*;
use crate::member::Member;
use crate::work::{Route, StreamKind};

const MS: u64 = 1_000_000;

fn engine() -> &'static Engine {
    Engine::new(Member::two()[0], 0)
}

fn kernel(ms: u64) -> Work {
    Work::Kernel(Cost::Device(ms * MS), Box::new(|| ()))
}

fn note<T: Send + 'static>(to: &mpsc::Sender<(T, u64)>, what: T) -> Work {
    let to = to.clone();
    Work::Do(Box::new(move |at| to.send((what, at)).unwrap()))
}

#[test]
fn stream_executes_in_order_with_exact_kernel_times() {
    let engine = engine();
    let stream = engine.open(1, StreamKind::NonBlocking, 0);
    let (to, noted) = mpsc::channel();
    engine.submit(
        stream,
        [
            kernel(1),
            note(&to, 0),
            kernel(3),
            note(&to, 1),
            kernel(2),
            note(&to, 2),
        ],
    );
    engine.wait(stream);
    let noted: Vec<_> = noted.try_iter().collect();
    assert_eq!(noted.iter().map(|(what, _)| *what).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(noted[1].1 - noted[0].1, 3 * MS);
    assert_eq!(noted[2].1 - noted[1].1, 2 * MS);
    assert!(engine.is_idle(stream));
}

#[test]
fn legacy_stream_is_ordered_with_blocking_streams_only() {
    let engine = engine();
    let blocking = engine.open(1, StreamKind::Blocking, 0);
    let apart = engine.open(1, StreamKind::NonBlocking, 0);
    let legacy = engine.open(1, StreamKind::Legacy, 0);
    let elsewhere = engine.open(2, StreamKind::Blocking, 0);
    let (to, noted) = mpsc::channel();
    let (open, gate) = mpsc::channel::<()>();
    engine.submit(
        blocking,
        [
            Work::Host(Box::new(move || gate.recv().unwrap())),
            note(&to, "first"),
        ],
    );
    engine.submit(legacy, [note(&to, "second")]);
    engine.submit(blocking, [note(&to, "third")]);
    engine.submit(apart, [note(&to, "apart")]);
    engine.submit(elsewhere, [note(&to, "elsewhere")]);
    engine.wait(apart);
    engine.wait(elsewhere);
    let mut free: Vec<_> = noted.try_iter().map(|(what, _)| what).collect();
    free.sort_unstable();
    assert_eq!(free, ["apart", "elsewhere"]);
    assert!(!engine.is_idle(legacy));
    open.send(()).unwrap();
    engine.wait_domain(1);
    assert_eq!(
        noted.try_iter().map(|(what, _)| what).collect::<Vec<_>>(),
        ["first", "second", "third"]
    );
}

#[test]
fn expanding_work_continues_until_nothing_is_returned() {
    let engine = engine();
    let stream = engine.open(1, StreamKind::NonBlocking, 0);
    let (to, noted) = mpsc::channel();
    let mut left = 3;
    let inner = to.clone();
    let expand = Work::Expand(Box::new(move || {
        if left == 0 {
            return Vec::new();
        }
        left -= 1;
        vec![kernel(1), note(&inner, left)]
    }));
    engine.submit(stream, [expand, note(&to, 9)]);
    engine.wait(stream);
    let noted: Vec<_> = noted.try_iter().collect();
    assert_eq!(
        noted.iter().map(|(what, _)| *what).collect::<Vec<_>>(),
        [2, 1, 0, 9]
    );
    assert_eq!(noted[3].1 - noted[0].1, 2 * MS);
}

#[test]
fn copies_serialize_per_route_and_overlap_otherwise() {
    let engine = engine();
    let copy = |route, ms: u64| Work::Copy(route, ms * MS, Box::new(|| ()));
    let (to, noted) = mpsc::channel();
    let gate = engine.open(1, StreamKind::NonBlocking, 0);
    let (open, closed) = mpsc::channel::<()>();
    let works = [
        ("up", copy(Route::ToDevice, 4)),
        ("down", copy(Route::ToHost, 4)),
        ("up too", copy(Route::ToDevice, 4)),
        ("kernel", kernel(4)),
    ];
    // All streams start at one time: when this kernel ends.
    let held = Work::Kernel(Cost::Device(0), Box::new(move || closed.recv().unwrap()));
    engine.submit(gate, [held]);
    for (name, work) in works {
        let stream = engine.open(1, StreamKind::NonBlocking, 0);
        engine.submit(stream, [work, note(&to, name)]);
    }
    open.send(()).unwrap();
    engine.wait_domain(1);
    let at: std::collections::HashMap<_, _> = noted.try_iter().collect();
    assert!(at["up too"] >= at["up"] + 4 * MS, "{at:?}");
    assert!(at["down"] < at["up too"], "{at:?}");
    let copied = engine
        .member
        .here(0)
        .copy_ns
        .load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(copied, 12 * MS);
}

#[test]
fn higher_priority_stream_goes_first() {
    let engine = engine();
    let low = engine.open(1, StreamKind::NonBlocking, 0);
    let high = engine.open(1, StreamKind::NonBlocking, -1);
    let (to, noted) = mpsc::channel();
    let (open, gate) = mpsc::channel::<()>();
    let held = Work::Kernel(Cost::Device(0), Box::new(move || gate.recv().unwrap()));
    engine.submit(low, [held, kernel(1), note(&to, "low")]);
    engine.submit(high, [kernel(1), note(&to, "high")]);
    open.send(()).unwrap();
    engine.wait_domain(1);
    assert_eq!(
        noted.try_iter().map(|(what, _)| what).collect::<Vec<_>>(),
        ["high", "low"]
    );
}

#[test]
fn late_release_hands_device_on_from_its_last_use() {
    const NOW: u64 = 1 << 30;
    const SLICE: u64 = 2 * MS;
    const LATE: u64 = 70_000;
    // The turn's unit is 1024 ns; times are rounded up.
    const ROUNDING: u64 = 2 * 1024;
    let running = |ms: u64, ready| {
        vec![Running {
            stream: 0,
            effect: Box::new(|| ()),
            cost: Cost::Device(ms * MS),
            began: None,
            ready,
            had: 0,
        }]
    };
    // Durations of the two kernels, ready time of the second, and its expected start.
    for (first, second, ready, want) in [
        (9, 9, NOW, NOW + SLICE),
        (1, 9, NOW, NOW + MS),
        (1, 9, NOW + MS + LATE / 2, NOW + MS + LATE / 2),
    ] {
        let [mut a, mut b] = Member::two().map(|member| Runner::new(Engine::new(member, 0)));
        let (mut of_a, mut of_b) = (a.engine.lock(), b.engine.lock());
        a.running = running(first, NOW);
        b.running = running(second, ready);
        a.advance(&mut of_a, NOW);
        assert!(
            b.advance(&mut of_b, ready).is_some(),
            "the second process did not wait"
        );
        let noticed = NOW + SLICE.min(first * MS) + LATE;
        while a.hold.is_some() {
            a.advance(&mut of_a, noticed);
        }
        b.advance(&mut of_b, noticed + LATE);
        b.advance(&mut of_b, noticed + LATE);
        let began = b.running[0].began.unwrap();
        assert!((want..want + ROUNDING).contains(&began), "{began} for {want}");
    }
}

#[test]
fn two_processes_never_have_the_device_at_once() {
    let members = Member::two();
    let (to, noted) = mpsc::channel();
    let begun = now_ns();
    for (index, member) in members.into_iter().enumerate() {
        let engine = Engine::new(member, 0);
        let stream = engine.open(1, StreamKind::NonBlocking, 0);
        engine.submit(stream, (0..10).map(|_| kernel(1)).chain([note(&to, index)]));
    }
    let ends: Vec<u64> = noted.iter().take(2).map(|(_, at)| at).collect();
    assert!(
        ends.iter().max().unwrap() - begun >= 20 * MS,
        "{ends:?} since {begun}"
    );
    let busy: u64 = members
        .iter()
        .map(|member| member.here(0).busy_ns.load(std::sync::atomic::Ordering::Relaxed))
        .sum();
    assert_eq!(busy, 20 * MS);
}

#[test]
fn wait_blocks_its_stream_until_it_is_over() {
    let engine = engine();
    let stream = engine.open(1, StreamKind::NonBlocking, 0);
    let (to, noted) = mpsc::channel();
    let (open, gate) = mpsc::channel::<()>();
    engine.submit(
        stream,
        [
            Work::Wait(Box::new(move || gate.try_recv().is_ok()), Watch::Nudged),
            note(&to, ()),
        ],
    );
    assert!(!engine.is_idle(stream));
    assert!(noted.try_recv().is_err());
    open.send(()).unwrap();
    engine.nudge();
    engine.wait(stream);
    assert!(noted.try_recv().is_ok());
}

/// Returns a wait that is never over, and whose first check says so only when it is told to.
fn slow_wait() -> (Work, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (asked, is_asked) = mpsc::channel();
    let (answer, answered) = mpsc::channel::<()>();
    let mut is_first = true;
    let check = move || {
        if std::mem::take(&mut is_first) {
            asked.send(()).unwrap();
            answered.recv().unwrap();
        }
        false
    };
    (Work::Wait(Box::new(check), Watch::Nudged), is_asked, answer)
}

#[test]
fn work_submitted_while_a_wait_is_checked_is_executed() {
    let engine = engine();
    let (first, second) = (
        engine.open(1, StreamKind::NonBlocking, 0),
        engine.open(1, StreamKind::NonBlocking, 0),
    );
    let (wait, is_asked, answer) = slow_wait();
    engine.submit(second, [wait]);
    is_asked.recv().unwrap();
    let (to, noted) = mpsc::channel();
    engine.submit(first, [note(&to, ())]);
    answer.send(()).unwrap();
    // Not `Engine::wait`, which submits.
    assert!(noted.recv_timeout(Duration::from_secs(60)).is_ok());
}

#[test]
fn domain_dropped_while_a_wait_is_checked_has_no_work_left() {
    let engine = engine();
    let stream = engine.open(1, StreamKind::NonBlocking, 0);
    let (wait, is_asked, answer) = slow_wait();
    let (to, noted) = mpsc::channel();
    engine.submit(stream, [wait, note(&to, ())]);
    is_asked.recv().unwrap();
    engine.drop_domain(1);
    engine.submit(stream, [note(&to, ())]);
    answer.send(()).unwrap();
    engine.wait_domain(1);
    assert!(noted.try_recv().is_err());
}

#[test]
fn kernels_of_several_streams_overlap_and_count_once() {
    let member = Member::two()[0];
    let engine = Engine::with(member, 0, 2);
    let streams = [0; 3].map(|_| engine.open(1, StreamKind::NonBlocking, 0));
    let (to, noted) = mpsc::channel();
    for (number, stream) in streams.into_iter().enumerate() {
        engine.submit(
            stream,
            [kernel(2), note(&to, number), kernel(1), note(&to, number)],
        );
    }
    engine.wait_domain(1);
    let noted: Vec<(usize, u64)> = noted.try_iter().collect();
    let ends = |number| -> Vec<u64> {
        let of = noted.iter().filter(|(stream, _)| *stream == number);
        of.map(|(_, at)| *at).collect()
    };
    let [first, second, third] = [0, 1, 2].map(ends);
    assert!(second[0] - first[0] < MS, "at once: {noted:?}");
    assert_eq!(first[1] - first[0], MS);
    assert!(third[0] >= first[0] + 2 * MS, "two at most: {noted:?}");
    let last = noted.iter().map(|(_, at)| *at).max().unwrap();
    let busy = member.here(0).busy_ns.load(std::sync::atomic::Ordering::Relaxed);
    assert!(busy <= last + 2 * MS - first[0], "{busy}");
}
