//! Local time, formatted and parsed.

/// Returns the local time of a number of seconds since 1970, as `10:31:05`; with `with_date`, as
/// `11-23 10:31:05`.
pub fn local_time(seconds: u64, with_date: bool) -> String {
    let seconds = libc::time_t::try_from(seconds).unwrap_or(libc::time_t::MAX);
    // SAFETY: a structure of numbers and a pointer, for which zeros are valid.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call; the function keeps neither.
    if unsafe { libc::localtime_r(&raw const seconds, &raw mut parts) }.is_null() {
        return "unknown".to_owned();
    }
    let time = format!("{:02}:{:02}:{:02}", parts.tm_hour, parts.tm_min, parts.tm_sec);
    if with_date {
        return format!("{:02}-{:02} {time}", parts.tm_mon + 1, parts.tm_mday);
    }
    time
}

/// Parses a local time as `10:31` or `10:31:05`, also after a date as `2026-11-23` and a blank or a `T`, or a
/// number of seconds since 1970. A time of day without a date is the last before `now`.
///
/// # Errors
/// The text says what is expected.
pub fn parse_local_time(text: &str, now: u64) -> Result<u64, String> {
    let expected = || "HH:MM[:SS], YYYY-MM-DD HH:MM[:SS] or seconds since 1970 are expected".to_owned();
    if text.bytes().all(|byte| byte.is_ascii_digit())
        && let Ok(seconds) = text.parse()
    {
        return Ok(seconds);
    }
    let (date, time) = match text.split_once([' ', 'T']) {
        Some((date, time)) => (Some(date), time),
        None => (None, text),
    };
    let numbers = |text: &str, separator: char| -> Option<Vec<i32>> {
        let parts = text.split(separator);
        parts
            .map(|part| {
                let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
                part.parse().ok().filter(|_| is_number)
            })
            .collect()
    };
    let (hour, minute, second) = match numbers(time, ':').as_deref() {
        Some(&[hour @ 0..24, minute @ 0..60]) => (hour, minute, 0),
        Some(&[hour @ 0..24, minute @ 0..60, second @ 0..=60]) => (hour, minute, second),
        _ => return Err(expected()),
    };
    let seconds_of = |year: i32, month: i32, day: i32| {
        // SAFETY: a structure of numbers and a pointer, for which zeros are valid.
        let mut parts: libc::tm = unsafe { std::mem::zeroed() };
        (parts.tm_year, parts.tm_mon, parts.tm_mday) = (year - 1900, month, day);
        (parts.tm_hour, parts.tm_min, parts.tm_sec) = (hour, minute, second);
        parts.tm_isdst = -1;
        // SAFETY: the pointer is valid for the call; the function does not keep it.
        let seconds = unsafe { libc::mktime(&raw mut parts) };
        u64::try_from(seconds).map_err(|_| expected())
    };
    match date.map(|date| numbers(date, '-')) {
        Some(Some(parts)) => match *parts {
            [year @ 1970..10_000, month @ 1..=12, day @ 1..=31] => seconds_of(year, month - 1, day),
            _ => Err(expected()),
        },
        Some(None) => Err(expected()),
        None => {
            let today = libc::time_t::try_from(now).map_err(|_| expected())?;
            // SAFETY: as above.
            let mut parts: libc::tm = unsafe { std::mem::zeroed() };
            // SAFETY: both pointers are valid for the call; the function keeps neither.
            if unsafe { libc::localtime_r(&raw const today, &raw mut parts) }.is_null() {
                return Err(expected());
            }
            let on = |day| seconds_of(parts.tm_year + 1900, parts.tm_mon, day);
            let today = on(parts.tm_mday)?;
            if today <= now {
                Ok(today)
            } else {
                on(parts.tm_mday - 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_time_has_the_form_of_a_clock() {
        // Time zones differ by multiples of a quarter of an hour.
        assert!(local_time(5, false).ends_with(":05"));
        let with_date = local_time(86_400 * 40, true);
        assert!(
            with_date.starts_with("02-") && with_date.len() == 14,
            "{with_date}"
        );
        assert_eq!(local_time(u64::MAX, false), "unknown");
    }

    #[test]
    fn parsed_time_is_the_printed_one() {
        let now = 1_763_900_000;
        for (text, printed) in [
            ("2025-11-23 10:31:05", "11-23 10:31:05"),
            ("2025-02-28T23:59", "02-28 23:59:00"),
        ] {
            let time = parse_local_time(text, now).unwrap();
            assert_eq!(local_time(time, true), printed);
        }
        let day = 86_400;
        for clock in ["00:00:00", "10:31:05", "23:59:59"] {
            let time = parse_local_time(clock, now).unwrap();
            assert!(time <= now && now - time <= day + 3600, "{clock}: {time}");
            assert_eq!(local_time(time, false), clock);
        }
        assert_eq!(parse_local_time("77", now), Ok(77));
        for text in [
            "",
            "-5",
            "10",
            "24:00",
            "10:60",
            "+1:00",
            "10:31:05:1",
            "2025-13-01 1:00",
            "2025-1 1:00",
            "now",
        ] {
            let parsed = parse_local_time(text, now);
            assert!(parsed.is_err() || text == "10", "{text}: {parsed:?}");
        }
    }
}
