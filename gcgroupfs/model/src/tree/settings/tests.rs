//! Bounds by root's settings, and serialisation.

use gcgroup_abi::NO_LIMIT;

use super::*;
use crate::arbiter::STRICT;

const GPU: Option<&str> = Some("GPU-1");

fn own_priority(settings: &Settings, device: Option<&str>) -> Option<u32> {
    settings.own(COMPUTE_PRIORITY, device).map(Value::priority)
}

fn quota(usec: u64, period_usec: u64) -> Value {
    Value::Quota(Quota { usec, period_usec })
}

fn denied(result: Result<()>) -> bool {
    result.is_err_and(|error| error.errno() == libc::EPERM)
}

#[test]
fn owner_is_unbounded_until_root_writes() {
    let mut settings = Settings::default();
    for limit in [10, NO_LIMIT, 5] {
        settings
            .set(MEMORY_LIMIT, None, Value::Number(limit), false)
            .unwrap();
        assert_eq!(settings.get(MEMORY_LIMIT, None).number(), limit);
    }
    for priority in [15, 0, 8] {
        settings
            .set(COMPUTE_PRIORITY, None, Value::Number(priority), false)
            .unwrap();
    }
    for freeze in [true, false] {
        settings
            .set(COMPUTE_FREEZE, None, Value::Flag(freeze), false)
            .unwrap();
    }
}

#[test]
fn owner_stays_within_last_value_of_root() {
    let mut settings = Settings::default();
    settings.set(MEMORY_LIMIT, GPU, Value::Number(100), true).unwrap();
    settings.set(MEMORY_LIMIT, GPU, Value::Number(50), false).unwrap();
    settings
        .set(MEMORY_LIMIT, GPU, Value::Number(100), false)
        .unwrap();
    assert!(denied(settings.set(MEMORY_LIMIT, GPU, Value::Number(101), false)));
    assert_eq!(settings.get(MEMORY_LIMIT, GPU).number(), 100);
    settings.set(MEMORY_LIMIT, GPU, Value::Number(200), true).unwrap();
    settings
        .set(MEMORY_LIMIT, GPU, Value::Number(150), false)
        .unwrap();

    settings
        .set(COMPUTE_PRIORITY, None, Value::Number(10), true)
        .unwrap();
    settings
        .set(COMPUTE_PRIORITY, None, Value::Number(12), false)
        .unwrap();
    settings
        .set(COMPUTE_PRIORITY, None, Value::Number(10), false)
        .unwrap();
    assert!(denied(settings.set(
        COMPUTE_PRIORITY,
        None,
        Value::Number(9),
        false
    )));

    settings
        .set(COMPUTE_MAX, None, quota(20_000, 50_000), true)
        .unwrap();
    settings
        .set(COMPUTE_MAX, None, quota(10_000, 50_000), false)
        .unwrap();
    settings
        .set(COMPUTE_MAX, None, quota(20_000, 50_000), false)
        .unwrap();
    assert!(denied(settings.set(
        COMPUTE_MAX,
        None,
        quota(20_001, 50_000),
        false
    )));
    assert!(denied(settings.set(
        COMPUTE_MAX,
        None,
        quota(NO_LIMIT, 50_000),
        false
    )));
    settings
        .set(COMPUTE_MAX, GPU, quota(NO_LIMIT, 50_000), false)
        .unwrap();

    settings
        .set(COMPUTE_FREEZE, None, Value::Flag(true), true)
        .unwrap();
    settings
        .set(COMPUTE_FREEZE, None, Value::Flag(true), false)
        .unwrap();
    assert!(denied(settings.set(
        COMPUTE_FREEZE,
        None,
        Value::Flag(false),
        false
    )));
    assert!(settings.get(COMPUTE_FREEZE, None).is_on());
    settings
        .set(COMPUTE_FREEZE, None, Value::Flag(false), true)
        .unwrap();
    settings
        .set(COMPUTE_FREEZE, None, Value::Flag(true), false)
        .unwrap();
    settings
        .set(COMPUTE_FREEZE, None, Value::Flag(false), false)
        .unwrap();
}

#[test]
fn root_priority_bounds_process_and_device_mutually() {
    let mut settings = Settings::default();
    settings
        .set(COMPUTE_PRIORITY, None, Value::Number(10), true)
        .unwrap();
    assert!(denied(settings.set(
        COMPUTE_PRIORITY,
        GPU,
        Value::Number(9),
        false
    )));
    settings
        .set(COMPUTE_PRIORITY, GPU, Value::Number(12), true)
        .unwrap();
    assert!(denied(settings.set(
        COMPUTE_PRIORITY,
        None,
        Value::Number(11),
        false
    )));
    settings
        .set(COMPUTE_PRIORITY, None, Value::Number(13), false)
        .unwrap();
    assert_eq!(
        (own_priority(&settings, GPU), own_priority(&settings, None)),
        (None, Some(13))
    );
    assert!(denied(settings.set(
        COMPUTE_PRIORITY,
        GPU,
        Value::Number(11),
        false
    )));
}

#[test]
fn process_priority_replaces_device_priorities() {
    let mut settings = Settings::default();
    settings
        .set(COMPUTE_PRIORITY, GPU, Value::Number(3), false)
        .unwrap();
    assert_eq!(
        (own_priority(&settings, None), own_priority(&settings, GPU)),
        (None, Some(3))
    );
    settings
        .set(COMPUTE_PRIORITY, None, Value::Number(5), false)
        .unwrap();
    assert_eq!(
        (own_priority(&settings, None), own_priority(&settings, GPU)),
        (Some(5), None)
    );
}

#[test]
fn process_freeze_and_device_freeze_are_independent() {
    let mut settings = Settings::default();
    settings
        .set(COMPUTE_FREEZE, None, Value::Flag(true), true)
        .unwrap();
    settings
        .set(COMPUTE_FREEZE, GPU, Value::Flag(true), false)
        .unwrap();
    settings
        .set(COMPUTE_FREEZE, GPU, Value::Flag(false), false)
        .unwrap();
    assert!(settings.get(COMPUTE_FREEZE, None).is_on());
}

#[test]
fn requests_stay_within_root_settings() {
    let mut settings = Settings::default();
    settings
        .set(MEMORY_LIMIT, None, Value::Number(100), true)
        .unwrap();
    settings
        .set(COMPUTE_PRIORITY, None, Value::Number(10), true)
        .unwrap();
    let request = |priority| Hello {
        memory_limit: 101,
        priority,
        ..Hello::PLAIN
    };
    assert_eq!(settings.apply_request(&request(12), Some(10)), None);
    assert_eq!(
        (settings.get(MEMORY_LIMIT, None).number(), settings.priority(None)),
        (100, 12)
    );
    assert_eq!(settings.apply_request(&request(9), Some(10)), Some(10));
    assert_eq!(settings.priority(None), 10);
    assert_eq!(
        settings.apply_request(&request(9), None),
        Some(10),
        "a rule bounds root's request too"
    );
}

#[test]
fn requested_priority_is_bounded_for_users_not_for_root() {
    let request = Hello {
        priority: 3,
        ..Hello::PLAIN
    };
    let mut roots = Settings::default();
    assert_eq!(roots.apply_request(&request, None), None);
    assert_eq!(roots.priority(None), 3);
    let mut users = Settings::default();
    assert_eq!(users.apply_request(&request, Some(8)), Some(8));
    assert_eq!(users.priority(None), 8);
}

#[test]
fn user_priority_is_raised_to_bound_in_force() {
    let mut settings = Settings::default();
    settings
        .set(COMPUTE_PRIORITY, None, Value::Number(9), false)
        .unwrap();
    for (root, priority) in [(None, 9), (Some(3), 9), (Some(12), 12)] {
        let above = Ranked {
            priority: root,
            root,
            held: None,
        };
        assert_eq!(settings.rank(GPU, above).in_force(), priority, "{root:?}");
    }
    settings
        .set(COMPUTE_PRIORITY, GPU, Value::Number(3), true)
        .unwrap();
    let above = Ranked {
        priority: Some(12),
        root: Some(12),
        held: None,
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
    settings
        .set(MEMORY_LIMIT, None, Value::Number(NO_LIMIT), true)
        .unwrap();
    settings
        .set(COMPUTE_PRIORITY, GPU, Value::Number(3), false)
        .unwrap();
    settings
        .set(COMPUTE_FREEZE, None, Value::Flag(true), false)
        .unwrap();
    settings
        .set(COMPUTE_MAX, GPU, quota(5_000, 10_000), true)
        .unwrap();
    settings.set_policy(Some(STRICT));
    let json = serde_json::to_string(&settings).unwrap();
    assert_eq!(
        serde_json::from_str::<Settings>(&json).unwrap(),
        settings,
        "{json}"
    );
    assert!(!settings.is_default());
}

#[test]
fn invalid_requests_are_ignored() {
    let hello = Hello {
        priority: 16,
        freeze: 7,
        ..Hello::PLAIN
    };
    assert_eq!(Settings::requested(&hello), Settings::default());
    let hello = Hello {
        memory_limit: 1,
        priority: 15,
        freeze: 1,
        ..Hello::PLAIN
    };
    let settings = Settings::requested(&hello);
    assert_eq!(
        (
            settings.get(MEMORY_LIMIT, None).number(),
            own_priority(&settings, None),
            settings.get(COMPUTE_FREEZE, None).is_on()
        ),
        (1, Some(15), true)
    );
}
