//! Shares of a loop's time by user. Listing a thousand processes on the socket takes a tenth of a second;
//! many such requests of one user must not delay those of others.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Each user may take one part in this many of the passing time.
const PARTS: u32 = 4;

/// Most time that is held against a user. So a user waits for at most [`PARTS`] times this.
const MOST: Duration = Duration::from_secs(1);

/// Uid, and whether in a container: root in there is not the machine's root.
pub type User = (u32, bool);

#[derive(Debug)]
pub struct Shares {
    taken: HashMap<User, Taken>,
    /// Time that a user may have taken beyond its share before it has to wait.
    advance: Duration,
}

#[derive(Debug)]
struct Taken {
    /// Time held against the user at `then`.
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

    /// Returns whether any time is held against users with this uid.
    pub fn concern(&self, uid: u32) -> bool {
        [false, true]
            .iter()
            .any(|there| self.taken.contains_key(&(uid, *there)))
    }

    /// Returns whether the user may take more time now.
    pub fn allows(&self, user: User, now: Instant) -> bool {
        self.taken
            .get(&user)
            .is_none_or(|taken| taken.left(now) <= self.advance)
    }

    /// Charges time to a user.
    pub fn take(&mut self, user: User, time: Duration, now: Instant) {
        let before = self.taken.get(&user);
        let before = before.map_or(Duration::ZERO, |taken| taken.left(now));
        let time = (before + time).min(MOST);
        self.taken.insert(user, Taken { time, then: now });
    }

    /// Removes users against whom no time is held.
    pub fn tidy(&mut self, now: Instant) {
        self.taken.retain(|_, taken| !taken.left(now).is_zero());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADVANCE: Duration = Duration::from_millis(25);

    #[test]
    fn greedy_user_gets_a_quarter_and_others_never_wait() {
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
    fn large_charge_is_capped_and_decays() {
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
