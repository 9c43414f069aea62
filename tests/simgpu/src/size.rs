//! Sizes in text.

/// Parses a decimal size with an optional case-insensitive suffix K, M, G or T (powers of 1024).
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "ki" | "kib" => 1 << 10,
        "m" | "mb" | "mi" | "mib" => 1 << 20,
        "g" | "gb" | "gi" | "gib" => 1 << 30,
        "t" | "tb" | "ti" | "tib" => 1 << 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_suffixes() {
        let cases = [
            ("0", Some(0)),
            ("12", Some(12)),
            ("3k", Some(3072)),
            ("16G", Some(16 << 30)),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_bytes(text), bytes, "{text}");
        }
        for text in ["", "G", "1X", "-1", "99999999999999T"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }
}
