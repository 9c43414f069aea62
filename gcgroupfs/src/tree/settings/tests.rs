//! Bounds by root's settings, and serialisation.

use super::*;

const GPU: Option<&str> = Some("GPU-1");

fn denied(result: Result<()>) -> bool {
    result.is_err_and(|error| error.errno() == libc::EPERM)
}

#[test]
fn owner_is_unbounded_until_root_writes() {
    let mut settings = Settings::default();
    for limit in [10, NO_LIMIT, 5] {
        settings.set_memory_limit(None, limit, false).unwrap();
        assert_eq!(settings.memory_limit(None), limit);
    }
    for priority in [15, 0, 8] {
        settings.set_priority(None, priority, false).unwrap();
    }
    for freeze in [true, false] {
        settings.set_freeze(None, freeze, false).unwrap();
    }
}

#[test]
fn owner_stays_within_last_value_of_root() {
    let mut settings = Settings::default();
    settings.set_memory_limit(GPU, 100, true).unwrap();
    settings.set_memory_limit(GPU, 50, false).unwrap();
    settings.set_memory_limit(GPU, 100, false).unwrap();
    assert!(denied(settings.set_memory_limit(GPU, 101, false)));
    assert_eq!(settings.memory_limit(GPU), 100);
    settings.set_memory_limit(GPU, 200, true).unwrap();
    settings.set_memory_limit(GPU, 150, false).unwrap();

    settings.set_priority(None, 10, true).unwrap();
    settings.set_priority(None, 12, false).unwrap();
    settings.set_priority(None, 10, false).unwrap();
    assert!(denied(settings.set_priority(None, 9, false)));

    settings
        .set_compute_max(None, 20_000, Some(50_000), true)
        .unwrap();
    settings.set_compute_max(None, 10_000, None, false).unwrap();
    settings.set_compute_max(None, 20_000, None, false).unwrap();
    assert!(denied(settings.set_compute_max(None, 20_001, None, false)));
    assert!(denied(settings.set_compute_max(None, NO_LIMIT, None, false)));
    settings.set_compute_max(GPU, NO_LIMIT, None, false).unwrap();

    settings.set_freeze(None, true, true).unwrap();
    settings.set_freeze(None, true, false).unwrap();
    assert!(denied(settings.set_freeze(None, false, false)));
    assert!(settings.freeze(None));
    settings.set_freeze(None, false, true).unwrap();
    settings.set_freeze(None, true, false).unwrap();
    settings.set_freeze(None, false, false).unwrap();
}

#[test]
fn root_priority_bounds_process_and_device_mutually() {
    let mut settings = Settings::default();
    settings.set_priority(None, 10, true).unwrap();
    assert!(denied(settings.set_priority(GPU, 9, false)));
    settings.set_priority(GPU, 12, true).unwrap();
    assert!(denied(settings.set_priority(None, 11, false)));
    settings.set_priority(None, 13, false).unwrap();
    assert_eq!(
        (settings.own_priority(GPU), settings.own_priority(None)),
        (None, Some(13))
    );
    assert!(denied(settings.set_priority(GPU, 11, false)));
}

#[test]
fn process_priority_replaces_device_priorities() {
    let mut settings = Settings::default();
    settings.set_priority(GPU, 3, false).unwrap();
    assert_eq!(
        (settings.own_priority(None), settings.own_priority(GPU)),
        (None, Some(3))
    );
    settings.set_priority(None, 5, false).unwrap();
    assert_eq!(
        (settings.own_priority(None), settings.own_priority(GPU)),
        (Some(5), None)
    );
}

#[test]
fn process_freeze_and_device_freeze_are_independent() {
    let mut settings = Settings::default();
    settings.set_freeze(None, true, true).unwrap();
    settings.set_freeze(GPU, true, false).unwrap();
    settings.set_freeze(GPU, false, false).unwrap();
    assert!(settings.freeze(None));
}

#[test]
fn wishes_stay_within_root_settings() {
    let mut settings = Settings::default();
    settings.set_memory_limit(None, 100, true).unwrap();
    settings.set_priority(None, 10, true).unwrap();
    let wish = |priority| Hello {
        memory_limit: 101,
        priority,
        ..Hello::PLAIN
    };
    assert_eq!(settings.wish(&wish(12), Some(10)), None);
    assert_eq!((settings.memory_limit(None), settings.priority(None)), (100, 12));
    assert_eq!(settings.wish(&wish(9), Some(10)), Some(10));
    assert_eq!(settings.priority(None), 10);
    assert_eq!(
        settings.wish(&wish(9), None),
        Some(10),
        "a rule bounds root's request too"
    );
}

#[test]
fn wished_priority_is_bounded_for_users_not_for_root() {
    let wish = Hello {
        priority: 3,
        ..Hello::PLAIN
    };
    let mut roots = Settings::default();
    assert_eq!(roots.wish(&wish, None), None);
    assert_eq!(roots.priority(None), 3);
    let mut users = Settings::default();
    assert_eq!(users.wish(&wish, Some(8)), Some(8));
    assert_eq!(users.priority(None), 8);
}

#[test]
fn user_priority_is_raised_to_bound_in_force() {
    let mut settings = Settings::default();
    settings.set_priority(None, 9, false).unwrap();
    for (root, priority) in [(None, 9), (Some(3), 9), (Some(12), 12)] {
        let above = Ranked { priority: root, root };
        assert_eq!(settings.rank(GPU, above).in_force(), priority, "{root:?}");
    }
    settings.set_priority(GPU, 3, true).unwrap();
    let above = Ranked {
        priority: Some(12),
        root: Some(12),
    };
    assert_eq!(
        settings.rank(GPU, above).in_force(),
        3,
        "root's setting on the device is nearest"
    );
    assert_eq!(settings.rank(None, above).in_force(), 12);
    // As stored by an earlier version.
    let before = r#"{"process":{"priority":{"value":0}}}"#;
    let settings: Settings = serde_json::from_str(before).unwrap();
    assert_eq!(settings.priority(None), 8);
}

#[test]
fn settings_survive_json() {
    let mut settings = Settings::default();
    assert_eq!(serde_json::to_string(&settings).unwrap(), "{}");
    assert!(settings.is_default());
    settings.set_memory_limit(None, NO_LIMIT, true).unwrap();
    settings.set_priority(GPU, 3, false).unwrap();
    settings.set_freeze(None, true, false).unwrap();
    settings.set_compute_max(GPU, 5_000, Some(10_000), true).unwrap();
    settings.set_policy(Policy::Strict);
    let json = serde_json::to_string(&settings).unwrap();
    assert_eq!(
        serde_json::from_str::<Settings>(&json).unwrap(),
        settings,
        "{json}"
    );
    assert!(!settings.is_default());
}

#[test]
fn invalid_wishes_are_ignored() {
    let hello = Hello {
        priority: 16,
        freeze: 7,
        ..Hello::PLAIN
    };
    assert_eq!(Settings::wished(&hello), Settings::default());
    let hello = Hello {
        memory_limit: 1,
        priority: 15,
        freeze: 1,
        ..Hello::PLAIN
    };
    let settings = Settings::wished(&hello);
    assert_eq!(
        (
            settings.memory_limit(None),
            settings.own_priority(None),
            settings.freeze(None)
        ),
        (1, Some(15), true)
    );
}
