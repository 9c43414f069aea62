//! All connections by number, the number of each user's, and when each must be examined next.
//!
//! Nothing here walks over all connections, so the cost of a turn of the loop does not depend on their
//! number.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use super::connection::Connection;

/// Maximum number of one user's connections that do not belong to registered processes.
pub(super) const MAX_UNREGISTERED_PER_UID: usize = 1024;

/// Bytes of the texts that one user's clients and all clients together are reading, where a text takes
/// several packets. The last quarter is reserved for users with at most [`LITTLE`].
const MAX_HELD_PER_UID: usize = 64 << 20;
const MAX_HELD: usize = 256 << 20;
const LITTLE: usize = 1 << 20;

/// Result of [`Connections::admission`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Free,
    /// Admitted if the connection with this number is closed first.
    InPlaceOf(u64),
    Refused,
}

#[derive(Debug, Default)]
pub(super) struct Connections {
    all: HashMap<u64, Queued>,
    /// One entry for each connection that has a timer.
    due: BTreeSet<(Instant, u64)>,
    /// Maximum number of connections that do not belong to registered processes.
    most: usize,
    /// Other connections that do not belong to registered processes, oldest first for each user, as numbers
    /// are counted up.
    unregistered: BTreeSet<(u32, u64)>,
    users: HashMap<u32, User>,
    /// Bytes of the texts that all clients are reading.
    held: usize,
    /// Users ordered by their number of such connections.
    ranking: BTreeSet<(usize, u32)>,
}

#[derive(Debug)]
struct Queued {
    /// Boxed, because the map may allocate twice the room it needs.
    connection: Box<Connection>,
    /// Its time in the queue `due`.
    due: Option<Instant>,
}

/// Totals of one user's connections that do not belong to registered processes.
#[derive(Debug, Default)]
struct User {
    nr_unregistered: usize,
    /// Bytes of the texts that they are reading.
    held: usize,
}

impl Connections {
    /// Creates a table with room for `most` connections that do not belong to registered processes.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    pub(super) fn get(&self, number: &u64) -> Option<&Connection> {
        self.all.get(number).map(|entry| entry.connection.as_ref())
    }

    pub(super) fn get_mut(&mut self, number: &u64) -> Option<&mut Connection> {
        self.all.get_mut(number).map(|entry| entry.connection.as_mut())
    }

    /// Decides whether the user may have another connection. If the table is full, the user with the most
    /// connections loses the oldest one to a user with fewer.
    pub(super) fn admission(&self, uid: u32) -> Admission {
        let own = self.users.get(&uid).map_or(0, |user| user.nr_unregistered);
        if own >= MAX_UNREGISTERED_PER_UID {
            return Admission::Refused;
        }
        if self.unregistered.len() < self.most {
            return Admission::Free;
        }
        let oldest = match self.ranking.last() {
            Some(&(most, top)) if most > own => self.unregistered.range((top, 0)..).next(),
            _ => None,
        };
        oldest.map_or(Admission::Refused, |(_, number)| Admission::InPlaceOf(*number))
    }

    /// Adds a connection; numbers must increase.
    pub(super) fn insert(&mut self, number: u64, connection: Box<Connection>) {
        let uid = connection.uid();
        self.unregistered.insert((uid, number));
        self.change(uid, |user| user.nr_unregistered += 1);
        let due = connection.next_look();
        self.all.insert(
            number,
            Queued {
                connection,
                due: None,
            },
        );
        if let Some(when) = due {
            self.look_at(number, when);
        }
    }

    pub(super) fn remove(&mut self, number: &u64) -> Option<Box<Connection>> {
        let Queued { connection, due } = self.all.remove(number)?;
        if let Some(when) = due {
            self.due.remove(&(when, *number));
        }
        self.end_visit(*number, connection.uid(), connection.held());
        Some(connection)
    }

    /// Removes all of them.
    pub(super) fn take_all(&mut self) -> Vec<Connection> {
        let numbers: Vec<u64> = self.all.keys().copied().collect();
        let removed = numbers.iter().filter_map(|number| self.remove(number));
        removed.map(|connection| *connection).collect()
    }

    /// Reclassifies a connection as that of a registered process.
    pub(super) fn is_hook_now(&mut self, number: u64) {
        if let Some(uid) = self.get(&number).map(Connection::uid) {
            self.end_visit(number, uid, 0);
        }
    }

    /// Returns whether a client of the user may read a text with `bytes` more.
    pub(super) fn has_room_for_text(&self, uid: u32, bytes: usize) -> bool {
        let own = self
            .users
            .get(&uid)
            .map_or(0, |user| user.held)
            .saturating_add(bytes);
        let most = match own <= LITTLE {
            true => MAX_HELD,
            false => MAX_HELD - MAX_HELD / 4,
        };
        bytes == 0 || (own <= MAX_HELD_PER_UID && self.held.saturating_add(bytes) <= most)
    }

    /// Records that a client of the user reads a text of `now` bytes in place of one of `before` bytes.
    pub(super) fn note_text(&mut self, uid: u32, before: usize, now: usize) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.held = (user.held + now).saturating_sub(before);
            self.held = (self.held + now).saturating_sub(before);
        }
    }

    /// Schedules an examination of the connection at `when`, unless an earlier one is scheduled.
    pub(super) fn look_at(&mut self, number: u64, when: Instant) {
        let Some(entry) = self.all.get_mut(&number) else {
            return;
        };
        if entry.due.is_some_and(|due| due <= when) {
            return;
        }
        if let Some(due) = entry.due.replace(when) {
            self.due.remove(&(due, number));
        }
        self.due.insert((when, number));
    }

    /// Returns the time of the next scheduled examination.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(when, _)| *when)
    }

    /// Removes and returns the next connection whose time has come.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<u64> {
        let number = self.due.first().filter(|(when, _)| *when <= now)?.1;
        self.due.pop_first();
        if let Some(entry) = self.all.get_mut(&number) {
            entry.due = None;
        }
        Some(number)
    }

    fn end_visit(&mut self, number: u64, uid: u32, held: usize) {
        if self.unregistered.remove(&(uid, number)) {
            self.change(uid, |user| {
                user.nr_unregistered -= 1;
                user.held = user.held.saturating_sub(held);
            });
            self.held = self.held.saturating_sub(held);
        }
    }

    fn change(&mut self, uid: u32, change: impl FnOnce(&mut User)) {
        let user = self.users.entry(uid).or_default();
        self.ranking.remove(&(user.nr_unregistered, uid));
        change(user);
        if user.nr_unregistered == 0 {
            self.users.remove(&uid);
        } else {
            self.ranking.insert((user.nr_unregistered, uid));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    /// Returns a connection of the user whose other end is closed.
    fn of(uid: u32) -> Box<Connection> {
        let (socket, _) = UnixStream::pair().unwrap();
        Box::new(Connection::new(OwnedFd::from(socket), 0, uid, uid))
    }

    /// Admits the user's next connection as the server does; returns whether there was room.
    fn come(connections: &mut Connections, last: &mut u64, uid: u32) -> bool {
        match connections.admission(uid) {
            Admission::Refused => return false,
            Admission::InPlaceOf(other) => drop(connections.remove(&other).unwrap()),
            Admission::Free => {}
        }
        *last += 1;
        connections.insert(*last, of(uid));
        true
    }

    fn nr_of(connections: &Connections, uid: u32) -> usize {
        connections.users.get(&uid).map_or(0, |user| user.nr_unregistered)
    }

    #[test]
    fn full_table_is_shared_equally_by_users() {
        let (mut connections, mut last) = (Connections::new(60), 0);
        for _ in 0..100 {
            come(&mut connections, &mut last, 1);
        }
        assert_eq!(nr_of(&connections, 1), 60);
        for (uid, share) in [(2, 30), (3, 20), (4, 15)] {
            for _ in 0..100 {
                come(&mut connections, &mut last, uid);
            }
            assert_eq!(nr_of(&connections, uid), share);
            for other in 1..uid {
                assert!(nr_of(&connections, other).abs_diff(share) <= 1, "{other}");
            }
        }
        assert!(come(&mut connections, &mut last, 5), "the first of another user");
        assert_eq!(connections.all.len(), 60);
    }

    #[test]
    fn full_table_drops_the_oldest_connection_never_a_hook() {
        let (mut connections, mut last) = (Connections::new(2), 0);
        for _ in 0..3 {
            connections.insert(last + 1, of(1));
            last += 1;
        }
        connections.is_hook_now(1);
        assert_eq!(connections.admission(2), Admission::InPlaceOf(2));
        assert_eq!(connections.admission(1), Admission::Refused);
        for number in 1..4 {
            connections.remove(&number).unwrap();
        }
        assert!(connections.users.is_empty() && connections.ranking.is_empty());
        assert!(connections.due.is_empty() && connections.unregistered.is_empty());
    }

    #[test]
    fn queue_keeps_only_the_earliest_time_of_a_connection() {
        let (mut connections, start) = (Connections::new(10), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for number in 1..4 {
            connections.insert(number, of(1));
        }
        connections.look_at(2, at(1));
        connections.look_at(2, at(5));
        connections.look_at(3, at(2));
        assert_eq!(connections.next_due(), Some(at(1)));
        assert_eq!(connections.pop_due(at(0)), None);
        assert_eq!(connections.pop_due(at(3)), Some(2));
        assert_eq!(connections.pop_due(at(3)), Some(3));
        assert_eq!(connections.pop_due(at(3)), None);
        connections.look_at(3, at(4));
        connections.remove(&3);
        assert_eq!(connections.pop_due(at(60)), Some(1));
        assert!(connections.due.is_empty());
    }

    #[test]
    fn texts_are_counted_while_they_are_read() {
        let mut connections = Connections::new(10);
        connections.insert(1, of(1));
        connections.insert(2, of(1));
        connections.note_text(1, 0, 100);
        connections.note_text(1, 100, 70);
        assert_eq!((connections.users[&1].held, connections.held), (70, 70));
        connections.end_visit(1, 1, 70);
        assert_eq!((connections.users[&1].held, connections.held), (0, 0));
    }

    #[test]
    fn texts_of_all_users_together_are_bounded() {
        let mut connections = Connections::new(1000);
        let mut read = |uid, bytes| {
            connections.insert(u64::from(uid), of(uid));
            let has_room = connections.has_room_for_text(uid, bytes);
            if has_room {
                connections.note_text(uid, 0, bytes);
            }
            has_room
        };
        assert!(!read(1, MAX_HELD_PER_UID + 1));
        assert_eq!(
            [2, 3, 4, 5].map(|uid| read(uid, MAX_HELD_PER_UID)),
            [true, true, true, false]
        );
        let nr_little = (6..1000).filter(|uid| read(*uid, LITTLE)).count();
        assert_eq!(nr_little, MAX_HELD / 4 / LITTLE);
        assert_eq!(connections.held, MAX_HELD);
    }
}
