use std::collections::BTreeMap;
use std::ffi::OsStr;

use gcgroup_abi::environment::Syntax;

use super::*;

fn options(variables: &BTreeMap<&str, OsString>) -> Options {
    Options::from(|name| variables.get(name).cloned())
}

#[test]
fn hello_carries_settings() {
    let variables = [
        ("GCGROUP_PRIORITY", "3"),
        ("GCGROUP_FREEZE", "true"),
        ("GCGROUP_SWAP", "1"),
        ("GCGROUP_GROUP", "team/a"),
        ("GCGROUP_SOCKET", "/run/other"),
        ("GCGROUP_MEMORY_LIMIT", ""),
    ];
    let options = options(&variables.map(|(name, value)| (name, value.into())).into());
    assert_eq!(
        options.hello,
        Hello {
            priority: 3,
            freeze: 1,
            can_swap: 1,
            memory_swap_max: NO_LIMIT,
            group: GroupName::new("team/a").unwrap(),
            ..Hello::PLAIN
        }
    );
    assert_eq!(options.socket, "/run/other");
    assert_eq!(options.misunderstood, None);
    assert!(!options.required);
}

/// Returns values that a syntax has, and others.
fn values(syntax: Syntax) -> (Vec<OsString>, Vec<OsString>) {
    let owned = |values: &[&str]| values.iter().map(OsString::from).collect::<Vec<_>>();
    let (good, mut bad): (&[&str], _) = match syntax {
        Syntax::Switch => (
            &["1", "YES", "on ", "0", "False"],
            owned(&["2", "y", "enabled", "1 1", "01"]),
        ),
        Syntax::Size => (
            &["8G", " 1.5GiB", "max", "4096"],
            owned(&["8 G", "1e9", "-1", "50%", "8GG", "1,5G"]),
        ),
        Syntax::Number(_) => (
            &["0", "15", " 7\n"],
            owned(&["16", "-1", "+1", "1.0", "0x1", "high"]),
        ),
        Syntax::Word(words) => (words, owned(&["", " ", "x"])[1..].to_vec()),
        Syntax::Group => (&["team/a", "\u{e9}"], owned(&[&"x".repeat(129)])),
        Syntax::Text(longest) => return (owned(&["/a"]), owned(&[&"x".repeat(longest + 1)])),
    };
    bad.push(OsStr::from_bytes(b"te\xffm").to_owned());
    (owned(good), bad)
}

#[test]
fn value_that_is_not_understood_never_counts_as_not_set() {
    let mut state = 1_u64;
    let mut random = |end: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        usize::try_from(state >> 33).unwrap() % end
    };
    // Each takes a second under Miri.
    let rounds = if cfg!(miri) { 10 } else { 3000 };
    for _ in 0..rounds {
        let (mut variables, mut first_bad) = (BTreeMap::new(), None);
        for variable in VARIABLES {
            let (good, bad) = values(variable.syntax);
            let value = match random(12) {
                0..8 => continue,
                8 => {
                    first_bad = first_bad.or(Some(variable.name));
                    bad[random(bad.len())].clone()
                }
                _ => good[random(good.len())].clone(),
            };
            variables.insert(variable.name, value);
        }
        let options = options(&variables);
        assert_eq!(options.misunderstood, first_bad, "{variables:?}");
        let required = variables.get("GCGROUP_REQUIRED").and_then(|value| value.to_str());
        let is_off =
            matches!(required.unwrap_or("1"), "0" | "False") || !variables.contains_key("GCGROUP_REQUIRED");
        assert_eq!(options.required, !is_off, "{required:?}");
    }
}
