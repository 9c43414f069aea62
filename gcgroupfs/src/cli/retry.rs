//! Requests that are repeated while the daemon restarts or has too much to do.

use std::thread;
use std::time::{Duration, Instant};

use gcgroup_client::{Answered, Refusal};
use nix::errno::Errno;

/// Longest wait for a daemon that does not answer, as while it is being restarted.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Longest wait for a daemon that answers, and refuses for now (`EAGAIN`).
const WHILE_BUSY: Duration = Duration::from_secs(60);

/// Shortest and longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Asks until the daemon grants or refuses a request: for [`PATIENCE`] without any answer, and for a minute
/// if it answers that the client may try again. `ask` gets the time that is left for an answer.
///
/// # Errors
/// As [`Answered`].
pub(super) fn ask_until_answered<T>(ask: impl FnMut(Duration) -> Answered<T>) -> Answered<T> {
    repeat(ask, Instant::now, thread::sleep)
}

fn repeat<T>(
    mut ask: impl FnMut(Duration) -> Answered<T>,
    now: impl Fn() -> Instant,
    sleep: impl Fn(Duration),
) -> Answered<T> {
    let began = now();
    let mut answered = began;
    loop {
        let left = |since: Instant| PATIENCE.saturating_sub(now().duration_since(since));
        let answer = ask(left(answered).max(PAUSES.0));
        let waited = now().duration_since(began);
        match &answer {
            Ok(Err(refusal)) if refusal.errno == Errno::EAGAIN && waited < WHILE_BUSY => answered = now(),
            Err(_) if left(answered) >= PAUSES.0 => {}
            _ => {
                return answer.map(|granted| {
                    granted.map_err(|refusal| match refusal.errno {
                        Errno::EAGAIN => after(refusal, waited),
                        _ => refusal,
                    })
                });
            }
        }
        // Many clients may wait.
        sleep((waited / 8).clamp(PAUSES.0, PAUSES.1));
    }
}

/// Adds to the reason how long the client has tried.
fn after(refusal: Refusal, waited: Duration) -> Refusal {
    let why = format!("for {} s: {}", waited.as_secs(), refusal.why);
    Refusal { why, ..refusal }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use anyhow::anyhow;

    /// Repeats a request that takes 10 ms, with the answers for the seconds that have passed. Returns the
    /// last answer, and the time at which it came.
    fn ask(answer: impl Fn(u64) -> Answered<()>) -> (Answered<()>, u64) {
        let (start, passed) = (Instant::now(), Cell::new(Duration::ZERO));
        let pass = |time: Duration| passed.set(passed.get() + time);
        let answer = |_| {
            pass(Duration::from_millis(10));
            answer(passed.get().as_secs())
        };
        let last = repeat(answer, || start + passed.get(), pass);
        (last, passed.get().as_secs())
    }

    fn refused<T>(errno: Errno) -> Answered<T> {
        Ok(Err(Refusal {
            path: String::new(),
            errno,
            why: String::new(),
        }))
    }

    #[test]
    fn client_waits_longer_for_a_daemon_that_answers() {
        let (last, seconds) = ask(|_| Err(anyhow!("silent")));
        assert!(last.is_err() && (4..=5).contains(&seconds), "{seconds}");
        let (last, seconds) = ask(|_| refused(Errno::EAGAIN));
        let why = last.unwrap().unwrap_err().why;
        assert!(
            why.starts_with("for 60 s") && (60..=62).contains(&seconds),
            "{why}"
        );
        // Each answer counts.
        let (last, seconds) = ask(|seconds| match seconds {
            30.. => Ok(Ok(())),
            20 | 23 | 26 => refused(Errno::EAGAIN),
            20..30 => Err(anyhow!("restarting")),
            _ => refused(Errno::EAGAIN),
        });
        assert_eq!((last.unwrap(), seconds), (Ok(()), 30));
        let (last, seconds) = ask(|_| refused(Errno::EDQUOT));
        assert_eq!((last.unwrap().unwrap_err().errno, seconds), (Errno::EDQUOT, 0));
    }
}
