//! Texts of sizes and percentages, as options and arguments take them. The daemon checks the range.

/// Returns whether the text is a number with at most one point and a unit, or `max`.
pub(crate) fn is_size(text: &str) -> bool {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = text.get(digits.len()..).unwrap_or_default().to_ascii_uppercase();
    let unit = unit.trim_end_matches('B').trim_end_matches('I');
    let is_unit = matches!(unit, "" | "K" | "M" | "G" | "T" | "P");
    text == "max" || is_number(digits) && is_unit
}

/// Returns whether the text is a positive percentage, or `max`.
pub(crate) fn is_percentage(text: &str) -> bool {
    let digits = text.strip_suffix('%').unwrap_or_default();
    let is_positive = digits.bytes().any(|byte| matches!(byte, b'1'..=b'9'));
    text == "max" || is_number(digits) && is_positive
}

fn is_number(text: &str) -> bool {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits(whole) && is_digits(fraction)
}
