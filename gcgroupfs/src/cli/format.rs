//! Formats of numbers and names in tables.

use std::time::Duration;

/// Formats bytes in the largest unit in which the number is at least one.
pub(in crate::cli) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    let unit = (bytes.max(1).ilog2() / 10).min(5) as usize;
    let shift = 10 * unit;
    match (unit, bytes & ((1_u64 << shift) - 1)) {
        (_, 0) => format!("{}{}", bytes >> shift, UNITS[unit]),
        // Tenths, truncated: never more than there is.
        (_, rest) => format!(
            "{}.{}{}",
            bytes >> shift,
            ((rest >> (shift - 10)) * 10) >> 10,
            UNITS[unit]
        ),
    }
}

/// Formats seconds in the two largest units, rounded down: `59s`, `12m30s`, `1h59m`, `3d4h`.
pub(in crate::cli) fn time_left(seconds: u64) -> String {
    const UNITS: [(u64, char); 4] = [(86_400, 'd'), (3600, 'h'), (60, 'm'), (1, 's')];
    let at = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(3);
    let mut rest = seconds;
    let parts = UNITS.iter().skip(at).take(2).map(|(unit, name)| {
        let number = rest / unit;
        rest %= unit;
        (number, name)
    });
    let parts: Vec<(u64, &char)> = parts.collect();
    let shown = parts
        .iter()
        .enumerate()
        .filter(|(at, (number, _))| *at == 0 || *number > 0);
    shown
        .map(|(_, (number, name))| format!("{number}{name}"))
        .collect()
}

/// Returns whether the terminal knows no control sequences.
pub(in crate::cli) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|name| name == "dumb")
}

/// Parses a pause between two pictures: seconds, as `0.5`, from 0.1 to 3600.
///
/// # Errors
/// The text says what is expected.
pub(in crate::cli) fn duration(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    let seconds = seconds.filter(|seconds| (0.1..=3600.0).contains(seconds));
    let seconds = seconds.ok_or("seconds from 0.1 to 3600 are expected")?;
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_short_and_truncated() {
        for (bytes, expected) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1K"),
            (1536, "1.5K"),
            (2047, "1.9K"),
            ((8 << 30) - 1, "7.9G"),
            (8 << 30, "8G"),
            (u64::MAX, "16383.9P"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn time_left_has_two_units() {
        for (seconds, expected) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (750, "12m30s"),
            (3600, "1h"),
            (3659, "1h"),
            (7199, "1h59m"),
            (273_600, "3d4h"),
        ] {
            assert_eq!(time_left(seconds), expected);
        }
    }

    #[test]
    fn pause_is_bounded() {
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "nan", "inf", "3601", "1s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
