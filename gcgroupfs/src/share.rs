//! How much of a loop's time the requests of each user may take: one that lists a thousand processes on the socket takes a
//! tenth of a second, and nobody may keep the others waiting with many of them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Of the time that passes, so much is each user's: one part in this many.
const PARTS: u32 = 4;

/// What is held against a user at most. So nobody waits for longer than [`PARTS`] times this.
const MOST: Duration = Duration::from_secs(1);

/// A user, and whether in a container: root there is not root here.
pub type User = (u32, bool);

#[derive(Debug)]
pub struct Shares {
    taken: HashMap<User, Taken>,
    /// What a user may have taken beyond that and goes on.
    advance: Duration,
}

#[derive(Debug)]
struct Taken {
    /// As it was then.
    time: Duration,
    then: Instant,
}

impl Taken {
    fn left(&self, now: Instant) -> Duration {
        self.time
            .saturating_sub(now.saturating_duration_since(self.then) / PARTS)
    }
}

impl Shares {
    pub fn new(advance: Duration) -> Self {
        Self {
            taken: HashMap::new(),
            advance,
        }
    }

    /// Whether anything is held against users of this number.
    pub fn concern(&self, uid: u32) -> bool {
        [false, true]
            .iter()
            .any(|there| self.taken.contains_key(&(uid, *there)))
    }

    /// Whether the user may take more now.
    pub fn allows(&self, user: User, now: Instant) -> bool {
        self.taken
            .get(&user)
            .is_none_or(|taken| taken.left(now) <= self.advance)
    }

    /// The user has taken so much.
    pub fn take(&mut self, user: User, time: Duration, now: Instant) {
        let before = self.taken.get(&user);
        let before = before.map_or(Duration::ZERO, |taken| taken.left(now));
        let time = (before + time).min(MOST);
        self.taken.insert(user, Taken { time, then: now });
    }

    /// Forgets those who have nothing held against them.
    pub fn tidy(&mut self, now: Instant) {
        self.taken.retain(|_, taken| !taken.left(now).is_zero());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADVANCE: Duration = Duration::from_millis(25);

    #[test]
    fn who_takes_all_the_time_has_a_part_of_it_and_others_wait_for_nobody() {
        let (greedy, other) = ((7, false), (7, true));
        let start = Instant::now();
        let (mut shares, mut now, mut taken) = (Shares::new(ADVANCE), start, Duration::ZERO);
        let cost = Duration::from_millis(10);
        while now < start + Duration::from_secs(10) {
            assert!(shares.allows(other, now));
            if shares.allows(greedy, now) {
                now += cost;
                taken += cost;
                shares.take(greedy, cost, now);
            } else {
                now += Duration::from_millis(1);
            }
        }
        let part = taken.as_secs_f64() / 10.0;
        assert!((0.24..0.27).contains(&part), "{part}");
    }

    #[test]
    fn one_who_took_much_at_once_is_let_go_on_after_a_while_and_forgotten() {
        let (mut shares, user, start) = (Shares::new(ADVANCE), (7, false), Instant::now());
        shares.take(user, Duration::from_secs(60), start);
        assert!(!shares.allows(user, start + Duration::from_secs(3)));
        assert!(shares.allows(user, start + MOST * PARTS));
        shares.tidy(start + Duration::from_secs(3));
        assert!(shares.concern(7));
        shares.tidy(start + MOST * PARTS);
        assert!(!shares.concern(7));
    }
}
