//! Rows of the table of settings: each is a control file, a record of the journal, and as far as its row says
//! a key of rules.

use super::*;
use crate::file::resolve;
use crate::rules::{Facts, Rules};
use crate::tree::settings::{
    Kind, LEASE, LEASE_ACTION, MEMORY_OOM_GROUP, SAMPLE, SETTINGS, Setting, Tighter,
};

/// Returns two values as the control file shows them: one that root sets, and a looser one.
fn values(setting: &Setting) -> (&'static str, &'static str) {
    match (setting.kind, setting.tighter) {
        (Kind::Bytes, _) => ("4096", "8192"),
        (Kind::Visible, _) => ("4096", "swap"),
        (Kind::Flag, _) => ("1", "0"),
        (Kind::Quota, _) => ("25000 50000", "max 100000"),
        (Kind::Seconds, _) => ("3600", "7200"),
        (Kind::LeaseAction, _) => ("kill", "freeze"),
        (Kind::Idle, _) => ("30 reclaim", "max"),
        (Kind::Number { .. }, Tighter::Higher) => ("3", "2"),
        (Kind::Number { .. }, Tighter::Lower | Tighter::Any) => ("2", "3"),
    }
}

/// Returns a world in which a process that can swap is in a group.
fn world() -> (World, crate::tree::ProcessId) {
    let world = World::new(2);
    world.group("team");
    let id = world.join(100);
    world.usage(id).can_swap.store(1, Relaxed);
    (world, id)
}

#[test]
fn every_setting_is_stored_bounded_and_restored() {
    for setting in SETTINGS {
        let (tight, loose) = values(setting);
        let name = setting.name;
        for place in ["100", "100/1", "team", "team/1"] {
            let (world, id) = world();
            let path = format!("{place}/{name}");
            if resolve(&world.tree, &path).is_err() {
                assert!(place != "team", "{path}");
                continue;
            }
            if place == "100" {
                let default = setting.process_default.unwrap_or(setting.default);
                assert_eq!(world.show(&path), setting.show(default), "{path}");
            }
            world.store(&path, ROOT, tight).unwrap();
            assert_eq!(world.show(&path), format!("{tight}\n"), "{path}");
            if !place.starts_with("team") && setting.tighter != Tighter::Any {
                let refused = world.store(&path, OWNER, loose).unwrap_err();
                let bound = tight.to_owned();
                let rule = setting.refusal;
                assert_eq!(refused, Error::BeyondRoot { rule, bound }, "{path}");
            }
            world.store(&path, OWNER, "nonsense").unwrap_err();

            let saved = match place.split('/').next() {
                Some("team") => world.tree.saved_group(world.group("team")),
                _ => world.tree.saved(id).unwrap(),
            };
            let text = serde_json::to_string(&saved).unwrap();
            assert!(
                text.contains(&format!("\"{}\":{{\"value\":", setting.key)),
                "{text}"
            );
            assert_eq!(serde_json::from_str::<Saved>(&text).unwrap(), saved, "{text}");
            if !place.starts_with("team") {
                let after = World::new(2);
                let blocks = blocks();
                blocks.usage().raw().can_swap.store(1, Relaxed);
                after.join_with(100, blocks, serde_json::from_str::<Saved>(&text).unwrap());
                assert_eq!(after.show(&path), format!("{tight}\n"), "{path}");
            }
        }
    }
}

#[test]
fn every_setting_is_settable_by_rules_as_its_row_says() {
    #[derive(serde::Deserialize)]
    struct Of {
        rule: Rules,
    }
    for setting in SETTINGS {
        let (tight, _) = values(setting);
        // A name can be the beginning of another, which is then quoted.
        let (section, name) = setting.name.split_once('.').unwrap();
        let is_of_groups = [LEASE, LEASE_ACTION, MEMORY_OOM_GROUP].contains(setting);
        let target = match is_of_groups {
            true => "group.name = \"g\"\ngroup",
            false => "process",
        };
        let text = format!("[[rule]]\n{target}.{section}.\"{name}\" = \"{tight}\"\n");
        match toml::from_str::<Of>(&text) {
            Ok(Of { rule }) => {
                let verdict = rule.verdict(&Facts::default());
                let ruled = match verdict.group.filter(|_| is_of_groups) {
                    Some(group) => group.settings,
                    None => verdict.process,
                };
                assert_eq!(ruled.lines(), [format!("{} {tight}", setting.name)]);
                let shown = ruled.settings().get(setting, None);
                assert_eq!(setting.show(shown).trim_end(), tight);
                assert!(setting.for_rules, "{}", setting.name);
            }
            Err(error) => {
                assert!(error.to_string().contains("unknown field"), "{error}");
                assert!(!setting.for_rules, "{error}");
            }
        }
    }
}

#[test]
fn defaults_are_of_their_kind_and_names_are_unique() {
    for (at, setting) in SETTINGS.iter().enumerate() {
        let defaults = [Some(setting.default), setting.process_default];
        assert!(
            defaults
                .into_iter()
                .flatten()
                .all(|value| setting.kind.has(value)),
            "{}",
            setting.name
        );
        let others = &SETTINGS[at + 1..];
        assert!(
            others
                .iter()
                .all(|other| other.key != setting.key && other.name != setting.name)
        );
        if let Kind::Number { most, expected } = setting.kind {
            assert_eq!(expected, format!("a number from 0 to {most}"));
        }
    }
}

#[test]
fn new_row_with_a_handler_is_published() {
    let world = World::new(1);
    let id = world.join(100);
    world.store("100/compute.sample", OWNER, "7").unwrap();
    assert_eq!(world.control(id).host_answer.load(Relaxed), 7);
    let refused = world.store("100/compute.sample", OWNER, "10").unwrap_err();
    assert_eq!(refused.errno(), libc::ERANGE);
    assert_eq!(SAMPLE.name, "compute.sample");
}

#[test]
fn damaged_or_unknown_values_of_the_journal_are_told_apart() {
    let read = |text: &str| serde_json::from_str::<Settings>(text);
    let later = r#"{"process":{"of.later":{"value":[1]},"freeze":{"value":true}},"devices":{}}"#;
    assert!(read(later).unwrap().get(COMPUTE_FREEZE, None).is_on());
    for damaged in [
        r#"{"process":{"freeze":{"value":1}}}"#,
        r#"{"process":{"priority":{"value":16}}}"#,
        r#"{"process":{"memory_limit":{"root":true}}}"#,
        r#"{"process":{"compute_max":{"value":25000}}}"#,
    ] {
        assert!(read(damaged).is_err(), "{damaged}");
    }
}

#[test]
fn setting_that_inherits_is_unset_by_default() {
    use crate::tree::fixture::{OWNER, ROOT};

    let (world, _) = world();
    world.group("team");
    world.store("team/gcgroup.procs", ROOT, "100").unwrap();
    for (name, value, other) in [
        ("compute.priority", "12", "8"),
        ("memory.visible", "4096", "limit"),
    ] {
        let [group, device, process] = ["team", "team/1", "100"].map(|place| format!("{place}/{name}"));
        world.store(&group, ROOT, value).unwrap();
        assert_eq!(world.show(&process), format!("{value}\n"));
        world.store(&group, ROOT, "default").unwrap();
        assert_eq!(world.show(&process), format!("{other}\n"), "{name}");
        world.store(&device, ROOT, value).unwrap();
        world.store(&group, ROOT, "default").unwrap();
        assert_eq!(
            world.show(&device),
            format!("{other}\n"),
            "{name}: left on a device"
        );

        // The owner may unset what no root has set.
        world.store(&process, OWNER, value).unwrap();
        world.store(&process, OWNER, "default").unwrap();
        assert_eq!(world.show(&process), format!("{other}\n"));
        world.store(&process, ROOT, value).unwrap();
        let refused = world.store(&process, OWNER, "default").unwrap_err();
        assert_eq!(refused.errno(), libc::EPERM);
        assert_eq!(world.show(&process), format!("{value}\n"));
        world.store(&process, ROOT, "default").unwrap();
    }
    for name in ["memory.limit", "compute.freeze", "compute.max"] {
        let refused = world.store(&format!("team/{name}"), ROOT, "default").unwrap_err();
        assert_eq!(refused.errno(), libc::EINVAL, "{name}");
    }
}
