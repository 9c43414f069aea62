//! Chooses the reasons that become events of pods: each once while it holds, and few at a time, since users
//! choose the annotations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Reasons of one pod that may be told at once.
const BURST: u32 = 10;

/// Interval after which a pod may be told another reason.
const REFILL: Duration = Duration::from_secs(30);

/// A pod's UID, and the reason why one of its annotations changes nothing.
pub(crate) type Refused = (String, String);

/// Reasons that have become events.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    pods: BTreeMap<String, Told>,
}

#[derive(Debug)]
struct Told {
    reasons: BTreeSet<String>,
    /// When [`BURST`] reasons may be told again.
    full: Instant,
}

impl Warnings {
    /// Takes the reasons that hold. Returns those that are to be told at this moment; others wait.
    pub(crate) fn update(&mut self, refused: &BTreeSet<Refused>, now: Instant) -> Vec<Refused> {
        self.pods.retain(|uid, told| {
            told.reasons
                .retain(|reason| refused.contains(&(uid.clone(), reason.clone())));
            !told.reasons.is_empty() || told.full > now
        });
        let mut fresh = Vec::new();
        for (uid, reason) in refused {
            let told = self.pods.entry(uid.clone()).or_insert_with(|| Told {
                reasons: BTreeSet::new(),
                full: now,
            });
            let full = told.full.max(now) + REFILL;
            if !told.reasons.contains(reason) && full <= now + REFILL * BURST {
                told.reasons.insert(reason.clone());
                told.full = full;
                fresh.push((uid.clone(), reason.clone()));
            }
        }
        fresh
    }

    /// Takes back that a reason has been told, so that it is told later.
    pub(crate) fn untold(&mut self, (uid, reason): &Refused) {
        if let Some(told) = self.pods.get_mut(uid) {
            told.reasons.remove(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(reasons: impl IntoIterator<Item = u32>) -> BTreeSet<Refused> {
        let reasons = reasons.into_iter();
        reasons
            .map(|reason| ("u".to_owned(), reason.to_string()))
            .collect()
    }

    #[test]
    fn reason_is_told_once_while_it_holds() {
        let (mut warnings, now) = (Warnings::default(), Instant::now());
        assert_eq!(warnings.update(&refused([1, 2]), now).len(), 2);
        assert!(warnings.update(&refused([1, 2]), now).is_empty());
        assert!(warnings.update(&refused([2]), now).is_empty());
        assert_eq!(warnings.update(&refused([1, 2]), now).len(), 1, "it holds again");
        warnings.untold(&("u".to_owned(), "2".to_owned()));
        assert_eq!(warnings.update(&refused([1, 2]), now).len(), 1);
    }

    #[test]
    fn changing_reasons_are_told_at_a_bounded_rate() {
        let (mut warnings, begin) = (Warnings::default(), Instant::now());
        let mut told = 0;
        for second in 0..600 {
            let now = begin + Duration::from_secs(u64::from(second));
            told += warnings
                .update(&refused((second % 2 == 0).then_some(second)), now)
                .len();
        }
        assert!((25..=31).contains(&told), "{told}");
        let later = begin + REFILL * (BURST + 30);
        assert!(warnings.update(&refused([]), later).is_empty());
        assert!(warnings.pods.is_empty());
    }

    #[test]
    fn last_reason_is_told_when_others_have_used_the_burst() {
        let (mut warnings, now) = (Warnings::default(), Instant::now());
        assert_eq!(warnings.update(&refused(0..50), now).len(), 10);
        assert!(warnings.update(&refused([99]), now).is_empty());
        assert_eq!(
            warnings.update(&refused([99]), now + REFILL),
            [("u".to_owned(), "99".to_owned())]
        );
    }
}
