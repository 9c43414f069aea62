//! Division of time in which several processes had work.
//!
//! The hardware gives contexts with work equal time slices, so such time is divided equally, up to what each
//! has submitted. A process whose
//! gate is closed is charged at most what it had queued when the gate closed, however long that took beside
//! other processes' work.

/// GPU time that a process claims, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    /// GPU time of its work by its own account, or the time for which it had work.
    pub own: u64,
    /// If its gate is closed: upper bound of the part that can have been its own GPU time.
    pub most: Option<u64>,
}

/// Returns each claim's share of the `passed` nanoseconds. The sum never exceeds `passed`, and equals it (up
/// to rounding) if the claims cover all of it.
pub(super) fn divide(passed: u64, claims: &[Claim]) -> Vec<u64> {
    let mut had: Vec<u64> = claims.iter().map(|claim| claim.own).collect();
    if sum(&had) <= u128::from(passed) {
        return had;
    }
    let due = |claim: &Claim| claim.most.map_or(0, |most| most.min(claim.own));
    let mut first: Vec<u64> = claims.iter().map(due).collect();
    scale(&mut first, passed);
    let mut left = passed.saturating_sub(total(&first));
    let rest = |claim: &Claim| if claim.most.is_none() { claim.own } else { 0 };
    let mut others: Vec<u64> = claims.iter().map(rest).collect();
    share(&mut others, left);
    left = left.saturating_sub(total(&others));
    // Time left over: bounded claims had more queued than their bound says.
    let more = |(claim, first): (&Claim, &u64)| claim.most.map_or(0, |_| claim.own.saturating_sub(*first));
    let mut last: Vec<u64> = claims.iter().zip(&first).map(more).collect();
    scale(&mut last, left);
    for (((had, first), other), last) in had.iter_mut().zip(first).zip(others).zip(last) {
        *had = first.saturating_add(other).saturating_add(last);
    }
    had
}

/// Reduces times to equal shares of `there_is`; what the share of a time exceeds it by goes to the longer
/// ones.
fn share(times: &mut [u64], there_is: u64) {
    let mut by_length: Vec<&mut u64> = times.iter_mut().filter(|time| **time > 0).collect();
    by_length.sort_unstable();
    let (mut left, mut number) = (there_is, by_length.len() as u64);
    for time in by_length {
        *time = (*time).min(left / number);
        left -= *time;
        number -= 1;
    }
}

/// Scales times down proportionally so that their sum is at most `there_is`.
fn scale(times: &mut [u64], there_is: u64) {
    let sum = sum(times);
    if sum <= u128::from(there_is) {
        return;
    }
    for nsec in times {
        *nsec = u64::try_from(u128::from(*nsec) * u128::from(there_is) / sum).unwrap_or(there_is);
    }
}

fn sum(times: &[u64]) -> u128 {
    times.iter().map(|nsec| u128::from(*nsec)).sum()
}

fn total(times: &[u64]) -> u64 {
    u64::try_from(sum(times)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(passed: u64, claims: &[(u64, Option<u64>)]) -> Vec<u64> {
        let claims: Vec<Claim> = claims.iter().map(|&(own, most)| Claim { own, most }).collect();
        divide(passed, &claims)
    }

    #[test]
    fn divide_without_overlap_returns_claims_unchanged() {
        assert_eq!(divided(100, &[(40, None), (60, None)]), [40, 60]);
        assert_eq!(divided(100, &[(40, Some(10)), (20, None)]), [40, 20]);
        assert!(divided(100, &[]).is_empty());
    }

    #[test]
    fn divide_unbounded_overlap_is_shared_equally() {
        assert_eq!(divided(100, &[(100, None), (100, None)]), [50, 50]);
        assert_eq!(divided(90, &[(60, None), (60, None), (60, None)]), [30, 30, 30]);
        assert_eq!(divided(90, &[(60, None), (10, None), (60, None)]), [40, 10, 40]);
    }

    #[test]
    fn divide_bounded_claim_gets_what_it_had_queued() {
        assert_eq!(divided(100, &[(30, Some(30)), (100, None)]), [30, 70]);
        assert_eq!(divided(100, &[(60, Some(30)), (100, None)]), [30, 70]);
        assert_eq!(
            divided(100, &[(100, Some(0)), (80, None)]),
            [20, 80],
            "no other process had work in the remaining time"
        );
        assert_eq!(
            divided(100, &[(100, Some(200)), (100, None)]),
            [100, 0],
            "a long kernel"
        );
        assert_eq!(
            divided(100, &[(100, Some(80)), (100, Some(80)), (100, None)]),
            [50, 50, 0]
        );
    }

    #[test]
    fn divide_huge_claims_never_exceed_passed_time() {
        let most = u64::MAX;
        for claims in [
            [(most, None), (most, None)],
            [(most, Some(most)), (most, None)],
            [(most, Some(most)), (most, Some(0))],
            [(most, Some(1)), (most, Some(most - 1))],
        ] {
            for passed in [0, 1, 1000] {
                let had = divided(passed, &claims);
                assert!(sum(&had) <= u128::from(passed), "{claims:?} {had:?}");
            }
        }
    }
}
