//! All connections by their numbers, who has how many, and when each must be looked at next.
//!
//! Nothing here walks over all connections: what a turn of the loop costs does not depend on how many there
//! are.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use super::connection::Connection;

/// Connections of one user that are not (or not yet) those of a registered process.
pub const MAX_VISITORS_PER_UID: usize = 1024;

/// Bytes of the texts that one user reads, and that all read together, where a text takes several packets.
/// The last quarter is for users with little.
const MAX_HELD_PER_UID: usize = 64 << 20;
const MAX_HELD: usize = 256 << 20;
const LITTLE: usize = 1 << 20;

/// Whether another connection of a user's may come.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    Free,
    /// If the connection of this number is closed first.
    InPlaceOf(u64),
    Refused,
}

#[derive(Debug)]
pub struct Connections {
    all: HashMap<u64, Entry>,
    /// One entry for each connection for which time matters.
    due: BTreeSet<(Instant, u64)>,
    /// How many connections may be visitors.
    most: usize,
    /// Those that are not of registered processes, oldest first for each user: numbers are counted up.
    visitors: BTreeSet<(u32, u64)>,
    users: HashMap<u32, User>,
    /// Bytes of the texts that all are reading.
    held: usize,
    /// The users by how many visitors each has.
    ranking: BTreeSet<(usize, u32)>,
}

#[derive(Debug)]
struct Entry {
    /// Boxed, as the map may have twice the room that it needs.
    connection: Box<Connection>,
    /// Its time in the queue.
    due: Option<Instant>,
}

/// What one user's visitors come to.
#[derive(Debug, Default)]
struct User {
    nr_visitors: usize,
    /// Bytes of the texts that they are reading.
    held: usize,
}

impl Connections {
    /// With room for so many visitors.
    pub fn new(most: usize) -> Self {
        Self {
            all: HashMap::new(),
            due: BTreeSet::new(),
            most,
            visitors: BTreeSet::new(),
            users: HashMap::new(),
            held: 0,
            ranking: BTreeSet::new(),
        }
    }

    pub fn get(&self, number: &u64) -> Option<&Connection> {
        self.all.get(number).map(|entry| entry.connection.as_ref())
    }

    pub fn get_mut(&mut self, number: &u64) -> Option<&mut Connection> {
        self.all.get_mut(number).map(|entry| entry.connection.as_mut())
    }

    /// Whether the user may have another connection. Where there is no more room, the user with the most
    /// visitors loses the oldest of them to a user with fewer.
    pub fn admission(&self, uid: u32) -> Admission {
        let own = self.users.get(&uid).map_or(0, |user| user.nr_visitors);
        if own >= MAX_VISITORS_PER_UID {
            return Admission::Refused;
        }
        if self.visitors.len() < self.most {
            return Admission::Free;
        }
        let oldest = match self.ranking.last() {
            Some(&(most, top)) if most > own => self.visitors.range((top, 0)..).next(),
            _ => None,
        };
        oldest.map_or(Admission::Refused, |(_, number)| Admission::InPlaceOf(*number))
    }

    /// Adds a visitor; numbers are counted up.
    pub fn insert(&mut self, number: u64, connection: Box<Connection>) {
        let uid = connection.uid();
        self.visitors.insert((uid, number));
        self.change(uid, |user| user.nr_visitors += 1);
        let due = connection.next_look();
        self.all.insert(
            number,
            Entry {
                connection,
                due: None,
            },
        );
        if let Some(when) = due {
            self.look_at(number, when);
        }
    }

    pub fn remove(&mut self, number: &u64) -> Option<Box<Connection>> {
        let Entry { connection, due } = self.all.remove(number)?;
        if let Some(when) = due {
            self.due.remove(&(when, *number));
        }
        self.end_visit(*number, connection.uid(), connection.held());
        Some(connection)
    }

    /// Removes all of them.
    pub fn take_all(&mut self) -> Vec<Connection> {
        let numbers: Vec<u64> = self.all.keys().copied().collect();
        let removed = numbers.iter().filter_map(|number| self.remove(number));
        removed.map(|connection| *connection).collect()
    }

    /// The connection has become that of a registered process.
    pub fn is_hook_now(&mut self, number: u64) {
        if let Some(uid) = self.get(&number).map(Connection::uid) {
            self.end_visit(number, uid, 0);
        }
    }

    /// Returns whether a visitor of the user may read a text of so many bytes more.
    pub fn has_room_for_text(&self, uid: u32, bytes: usize) -> bool {
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

    /// A visitor of the user reads a text of so many bytes, in place of another.
    pub fn note_text(&mut self, uid: u32, before: usize, now: usize) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.held = (user.held + now).saturating_sub(before);
            self.held = (self.held + now).saturating_sub(before);
        }
    }

    /// Has the connection looked at when the time has come, if it is not to be before.
    pub fn look_at(&mut self, number: u64, when: Instant) {
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

    /// When the next one must be looked at.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(when, _)| *when)
    }

    /// Takes the next one out of the queue whose time has come.
    pub fn pop_due(&mut self, now: Instant) -> Option<u64> {
        let number = self.due.first().filter(|(when, _)| *when <= now)?.1;
        self.due.pop_first();
        if let Some(entry) = self.all.get_mut(&number) {
            entry.due = None;
        }
        Some(number)
    }

    fn end_visit(&mut self, number: u64, uid: u32, held: usize) {
        if self.visitors.remove(&(uid, number)) {
            self.change(uid, |user| {
                user.nr_visitors -= 1;
                user.held = user.held.saturating_sub(held);
            });
            self.held = self.held.saturating_sub(held);
        }
    }

    fn change(&mut self, uid: u32, change: impl FnOnce(&mut User)) {
        let user = self.users.entry(uid).or_default();
        self.ranking.remove(&(user.nr_visitors, uid));
        change(user);
        if user.nr_visitors == 0 {
            self.users.remove(&uid);
        } else {
            self.ranking.insert((user.nr_visitors, uid));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    /// A connection of that user's, which nobody is at the other end of.
    fn of(uid: u32) -> Box<Connection> {
        let (socket, _) = UnixStream::pair().unwrap();
        Box::new(Connection::new(OwnedFd::from(socket), 0, uid, uid))
    }

    /// Lets the user's next connection in, as the server does; whether there was room.
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
        connections.users.get(&uid).map_or(0, |user| user.nr_visitors)
    }

    #[test]
    fn full_table_is_shared_equally_by_all_who_come() {
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
    fn oldest_connection_makes_room_and_hooks_never_do() {
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
        assert!(connections.due.is_empty() && connections.visitors.is_empty());
    }

    #[test]
    fn queue_has_each_connection_once_and_by_its_earliest_time() {
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
    fn texts_are_counted_as_long_as_they_are_read() {
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
