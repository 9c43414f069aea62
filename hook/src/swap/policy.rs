//! Reclaim policies: the order in which blocks are moved out.

/// The properties of a block that a policy considers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Index in the list passed to [`choose`].
    pub(super) at: usize,
    /// Ascending in order of creation: the smallest is the oldest.
    pub(super) number: u64,
    pub(super) size: u64,
    /// Size of the allocation that the block belongs to.
    pub(super) whole: u64,
}

/// An order in which to move blocks out.
struct Policy {
    name: &'static str,
    /// Blocks with smaller keys go first.
    key: fn(&Candidate) -> (u64, u64),
}

const POLICIES: &[Policy] = &[
    // The oldest block is the most likely to be no longer in use. Use itself is unknown, because pointers
    // among a launch's arguments cannot be told from numbers.
    Policy {
        name: "oldest",
        key: |one| (one.number, 0),
    },
    Policy {
        name: "largest",
        key: |one| (u64::MAX - one.whole, one.number),
    },
];

/// Returns the indexes of blocks that together have at least `wanted` and at most `allowed` bytes, or as much
/// as possible. `name` is the value of `GCGROUP_RECLAIM`; without a known name the first policy applies.
pub(super) fn choose(name: Option<&str>, blocks: &[Candidate], wanted: u64, allowed: u64) -> Vec<usize> {
    let policy = POLICIES
        .iter()
        .find(|policy| Some(policy.name) == name)
        .or(POLICIES.first());
    let Some(policy) = policy else { return Vec::new() };
    let mut order = blocks.to_vec();
    order.sort_unstable_by_key(policy.key);
    let (mut gone, mut chosen) = (0_u64, Vec::new());
    for block in order {
        if gone >= wanted {
            break;
        }
        let after = gone.saturating_add(block.size);
        if after <= allowed {
            gone = after;
            chosen.push(block.at);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(sizes: &[u64]) -> Vec<Candidate> {
        let one = |(at, size): (usize, &u64)| Candidate {
            at,
            number: at as u64,
            size: *size,
            whole: *size,
        };
        sizes.iter().enumerate().map(one).collect()
    }

    #[test]
    fn policies_are_the_words_of_their_variable() {
        let names: Vec<&str> = POLICIES.iter().map(|policy| policy.name).collect();
        let syntax = gcgroup_abi::environment::GCGROUP_RECLAIM.syntax;
        assert!(matches!(syntax, gcgroup_abi::environment::Syntax::Word(words) if words == names));
    }

    #[test]
    fn choose_returns_as_many_as_needed() {
        let sizes = [4, 2, 8, 6];
        for (name, wanted, allowed, want) in [
            (None, 0, u64::MAX, vec![]),
            (None, 1, u64::MAX, vec![0]),
            (None, 5, u64::MAX, vec![0, 1]),
            (Some("oldest"), u64::MAX, u64::MAX, vec![0, 1, 2, 3]),
            (Some("largest"), 9, u64::MAX, vec![2, 3]),
            (Some("largest"), 9, 9, vec![2]),
            (None, 20, 9, vec![0, 1]),
            (Some("unheard of"), 1, u64::MAX, vec![0]),
        ] {
            assert_eq!(
                choose(name, &blocks(&sizes), wanted, allowed),
                want,
                "{name:?} {wanted} {allowed}"
            );
        }
    }
}
