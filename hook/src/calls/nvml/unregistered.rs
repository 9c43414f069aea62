//! Limits of a process that has not called `cuInit`: the one that it was started with, and those of the
//! groups in which it would begin, which the daemon tells.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use gcgroup_abi::NO_LIMIT;
use gcgroup_abi::message::{RoomQuery, RoomReply};
use parking_lot::Mutex;

use crate::driver::thread;
use crate::memory::room::Room;
use crate::shared::client;
use crate::shared::environment::Options;

/// How long an answer is used: monitors ask many times a second.
const FRESH: Duration = Duration::from_millis(100);

/// How long a call of NVML waits for a daemon.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a daemon that did not answer is not asked again.
const PAUSE: Duration = Duration::from_secs(10);

/// The last answer for a device, and until when it is used.
#[derive(Debug, Clone, Copy)]
struct Known {
    uuid: [u64; 2],
    reply: RoomReply,
    until: Instant,
}

/// Returns the smallest limit of the process on the device with that UUID, and what its groups leave of it.
pub(super) fn room(uuid: Option<[u64; 2]>) -> Room {
    // Read once, since other threads may change the environment.
    static OPTIONS: OnceLock<Options> = OnceLock::new();
    static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());
    let options = OPTIONS.get_or_init(Options::from_environment);
    let own = options.hello.memory_limit;
    let ask = |uuid| {
        let group = options.hello.group;
        let query = RoomQuery { uuid, group };
        thread::uncanceled(|| client::room(&options.socket, &query, PATIENCE))
    };
    // Without a waiting lock: a child may have been forked while another thread held it.
    let reply = uuid.map_or(RoomReply::NO_LIMIT, |uuid| match KNOWN.try_lock() {
        Some(mut known) => remembered(&mut known, uuid, ask),
        None => ask(uuid).unwrap_or(RoomReply::NO_LIMIT),
    });
    Room {
        total: own.min(reply.limit),
        free: own.min(reply.room),
        is_shared: reply.limit != NO_LIMIT,
    }
}

/// Returns the last answer for a device while it is fresh, otherwise a new one. If no daemon answers, the
/// last one stays.
fn remembered(
    known: &mut Vec<Known>,
    uuid: [u64; 2],
    ask: impl FnOnce([u64; 2]) -> Option<RoomReply>,
) -> RoomReply {
    let last = known.iter().position(|known| known.uuid == uuid);
    let last = last.map(|index| known.swap_remove(index));
    let began = Instant::now();
    if let Some(last) = last.filter(|last| began < last.until) {
        known.push(last);
        return last.reply;
    }
    let asked = ask(uuid);
    let now = Instant::now();
    let is_slow = asked.is_none() && now.duration_since(began) >= PATIENCE / 2;
    let reply = asked.or(last.map(|last| last.reply));
    let reply = reply.unwrap_or(RoomReply::NO_LIMIT);
    known.push(Known {
        uuid,
        reply,
        until: now + if is_slow { PAUSE } else { FRESH },
    });
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_used_while_fresh_and_kept_without_a_daemon() {
        let mut known = Vec::new();
        let limit = |limit| RoomReply { limit, room: limit };
        assert_eq!(remembered(&mut known, [1, 1], |_| None), RoomReply::NO_LIMIT);
        assert_eq!(remembered(&mut known, [2, 2], |_| Some(limit(5))), limit(5));
        assert_eq!(
            remembered(&mut known, [2, 2], |_| Some(limit(6))),
            limit(5),
            "fresh"
        );
        assert_eq!(known.len(), 2);
        known.iter_mut().for_each(|known| known.until = Instant::now());
        assert_eq!(remembered(&mut known, [2, 2], |_| None), limit(5), "no daemon");
        known.iter_mut().for_each(|known| known.until = Instant::now());
        assert_eq!(remembered(&mut known, [2, 2], |_| Some(limit(6))), limit(6));
        assert_eq!(known.len(), 2);
    }
}
