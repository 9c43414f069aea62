//! Bars that are drawn with characters.

use crate::cli::format::size;

/// Width of a meter.
const METER: usize = 24;

/// Returns a bar of used bytes with the numbers at its right end.
pub(super) fn meter(used: u64, total: u64) -> String {
    let numbers = format!("{}/{}", size(used), size(total));
    let inner = METER - 2;
    let filled = (u128::from(used) * inner as u128)
        .checked_div(total.into())
        .unwrap_or(0);
    let filled = usize::try_from(filled).unwrap_or(inner).min(inner);
    let left = inner.saturating_sub(numbers.len());
    let bar: String = (0..left).map(|at| if at < filled { '|' } else { ' ' }).collect();
    format!("[{bar}{numbers}]")
}

/// Returns the latest percentages as bars, the last at the right end; 100 and more are the highest.
pub(super) fn sparkline(history: &[u64], width: usize, is_ascii: bool) -> String {
    let bars: Vec<char> = if is_ascii {
        " .:-=+*#@"
    } else {
        " ▁▂▃▄▅▆▇█"
    }
    .chars()
    .collect();
    let skipped = history.len().saturating_sub(width);
    let shown = history.iter().skip(skipped).map(|percent| {
        // Anything above 0 has a bar.
        let bar = usize::try_from(percent.div_ceil(13)).unwrap_or(usize::MAX);
        bars.get(bar.min(8)).copied().unwrap_or(' ')
    });
    let shown: String = shown.collect();
    format!("{shown:>width$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparkline_shows_the_latest_values() {
        assert_eq!(sparkline(&[100, 0, 1, 50, 300], 4, true), " .=@");
        assert_eq!(sparkline(&[100], 3, false), "  █");
        assert_eq!(sparkline(&[], 2, false), "  ");
    }

    #[test]
    fn meter_is_bounded_for_any_numbers() {
        assert_eq!(meter(4 << 30, 8 << 30), "[|||||||||||      4G/8G]");
        for (used, total) in [(0, 0), (5, 0), (u64::MAX, 1), (u64::MAX, u64::MAX), (1, u64::MAX)] {
            assert_eq!(meter(used, total).len(), METER, "{used} {total}");
        }
    }
}
