//! Tests of value formats.

use super::*;
use crate::arbiter;
use crate::error::{Error, Result};

fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
    result.unwrap_err().errno()
}

#[test]
fn bytes_take_binary_suffixes_in_any_case() {
    for (text, expected) in [
        ("0", 0),
        ("010", 10),
        ("1048576", 1 << 20),
        ("1K", 1 << 10),
        ("1k", 1 << 10),
        ("3Mi", 3 << 20),
        ("8GiB", 8 << 30),
        ("8gib", 8 << 30),
        ("2t", 2 << 40),
        ("1P", 1 << 50),
        ("8GB", 8 << 30),
        ("8gb", 8 << 30),
        ("1KB", 1 << 10),
        ("1.5G", 3 << 29),
        ("0.5KiB", 512),
        ("1.0T", 1 << 40),
        ("0.0001K", 0),
        ("2.000000001P", (2 << 50) + 1_125_899),
        ("0000000000000000000000000001", 1),
        ("max", NO_LIMIT),
        ("18446744073709551615", NO_LIMIT),
    ] {
        assert_eq!(parse_bytes(text), Ok(expected), "{text}");
    }
}

#[test]
fn bytes_in_wrong_format_are_einval() {
    for text in [
        "",
        " ",
        "0x10",
        "1e3",
        "1.5",
        "1.G",
        ".5G",
        ".",
        "1.2.3G",
        "1.0000000001G",
        "50%",
        "%",
        "+1",
        "-1",
        "--1",
        "1 2",
        "1 G",
        "G",
        "KiB",
        "1B",
        "1KBB",
        "1iB",
        "MAX",
        "maximum",
        "1G\n",
        "1\u{0660}",
        "\u{0661}",
        "1_000",
        "1,000",
        "ten",
        "1GG",
    ] {
        assert_eq!(errno(parse_bytes(text)), libc::EINVAL, "{text:?}");
    }
}

#[test]
fn bytes_beyond_64_bits_are_erange() {
    for text in [
        "18446744073709551616",
        "16384P",
        "18014398509481984K",
        "99999999999999999999999999999999",
        "16384.5P",
    ] {
        assert_eq!(errno(parse_bytes(text)), libc::ERANGE, "{text}");
    }
    assert_eq!(parse_bytes("16383P"), Ok(16383 << 50));
}

#[test]
fn bytes_formatted_parse_back() {
    for number in [0, 1, 4096, NO_LIMIT - 1, NO_LIMIT] {
        assert_eq!(parse_bytes(bytes(number).trim_end()), Ok(number));
    }
    assert_eq!(bytes(NO_LIMIT), "max\n");
}

#[test]
fn size_is_rounded_to_a_tenth() {
    for (bytes, expected) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (256 << 20, "256 MiB"),
        (3 << 29, "1.5 GiB"),
        ((1 << 30) + 1, "1 GiB"),
        (1 << 53, "8 PiB"),
        (NO_LIMIT - 1, "16384 PiB"),
        (NO_LIMIT, "max"),
    ] {
        assert_eq!(size(bytes), expected);
    }
}

#[test]
fn percentages_are_parts_of_the_memory() {
    let gpu = Some(80 << 30);
    for (text, expected) in [
        ("50%", 40 << 30),
        ("0%", 0),
        ("100%", 80 << 30),
        ("100.0%", 80 << 30),
        ("12.5%", 10 << 30),
        ("8GB", 8 << 30),
        ("max", NO_LIMIT),
    ] {
        assert_eq!(parse_size(text, gpu), Ok(expected), "{text}");
    }
    assert_eq!(parse_size("50%", Some(u64::MAX)), Ok(u64::MAX / 2));
    assert_eq!(parse_visible("25%", gpu), Ok(20 << 30));
    for text in ["101%", "100.1%", "18446744073709551616%"] {
        assert_eq!(errno(parse_size(text, gpu)), libc::ERANGE, "{text}");
    }
    for text in [
        "%", "-1%", "50 %", "50%%", "1e1%", "5G%", "max%", "50%G", ".5%", "5.%",
    ] {
        assert_eq!(errno(parse_size(text, gpu)), libc::EINVAL, "{text}");
    }
    assert_eq!(parse_size("50%", None), Err(Error::NoMemorySize));
    assert_eq!(errno(parse_visible("0%", gpu)), libc::ERANGE);
}

#[test]
fn flags_are_0_and_1_only() {
    assert_eq!(parse_flag("0"), Ok(false));
    assert_eq!(parse_flag("1"), Ok(true));
    assert_eq!(parse_flag("01"), Ok(true));
    for text in ["2", "10", "18446744073709551616"] {
        assert_eq!(errno(parse_flag(text)), libc::ERANGE, "{text}");
    }
    for text in ["", "yes", "true", "+1", "-0", "0x1", "1 1"] {
        assert_eq!(errno(parse_flag(text)), libc::EINVAL, "{text}");
    }
}

#[test]
fn numbers_go_from_0_to_most() {
    let parse_priority = |text| parse_number(text, 15, "a number from 0 to 15");
    assert_eq!(parse_priority("0"), Ok(0));
    assert_eq!(parse_priority("15"), Ok(15));
    assert_eq!(parse_priority("010"), Ok(10));
    for text in ["16", "4294967296", "99999999999999999999999"] {
        assert_eq!(errno(parse_priority(text)), libc::ERANGE, "{text}");
    }
    for text in ["", "max", "-1", "+1", "0x1", "high"] {
        assert_eq!(errno(parse_priority(text)), libc::EINVAL, "{text}");
    }
}

#[test]
fn quotas_parse_like_cpu_max() {
    let parse = |text| parse_quota(text, 20_000);
    for (text, expected) in [
        ("max", (NO_LIMIT, 20_000)),
        ("max 50000", (NO_LIMIT, 50_000)),
        ("1000", (1_000, 20_000)),
        ("25000 100000", (25_000, 100_000)),
        ("400000\t1000000", (400_000, 1_000_000)),
        ("50%", (10_000, 20_000)),
        ("12.5% 100000", (12_500, 100_000)),
        ("400%", (80_000, 20_000)),
    ] {
        let (usec, period_usec) = expected;
        assert_eq!(parse(text), Ok(Quota { usec, period_usec }), "{text}");
    }
    for text in [
        "999",
        "0",
        "1000000001",
        "1000 999",
        "1000 1000001",
        "max 0",
        "99999999999999999999",
        "18446744073709551615",
        "0%",
        "4.9%",
        "99999999999%",
        "50% 999",
    ] {
        assert_eq!(errno(parse(text)), libc::ERANGE, "{text}");
    }
    for text in [
        "",
        "1 2 3",
        "-1",
        "%",
        "1000 25%",
        "1000 max",
        "maximum",
        "1000,1000",
    ] {
        assert_eq!(errno(parse(text)), libc::EINVAL, "{text}");
    }
    let shown = quota(Quota {
        usec: 25_000,
        period_usec: 50_000,
    });
    assert_eq!(shown, "25000 50000\n");
    assert!(parse(&shown).is_ok());
    assert_eq!(quota(Quota::NONE), "max 100000\n");
}

#[test]
fn policies_are_parsed_by_name() {
    for policy in arbiter::POLICIES {
        assert_eq!(parse_policy(policy.name), Ok(*policy));
        assert!(arbiter::names().contains(policy.name));
    }
    for text in ["", "Weighted", "fair", "strict weighted"] {
        assert_eq!(errno(parse_policy(text)), libc::EINVAL, "{text}");
    }
}

#[test]
fn printable_escapes_what_controls_a_terminal() {
    assert_eq!(printable("a b\n\u{e9}\\"), "a b\n\u{e9}\\");
    assert_eq!(
        printable("\u{1b}[2J\u{9b}\t\u{202e}"),
        "\\033[2J\\302\\233\\011\\342\\200\\256"
    );
}

#[test]
fn word_escapes_all_but_printable_ascii() {
    let word = |text| word(text).to_string();
    assert_eq!(word("python3"), "python3");
    assert_eq!(word("a b\nc=d\\"), "a\\040b\\012c\\075d\\134");
    assert_eq!(word("\u{e9}"), "\\303\\251");
    assert_eq!(word("\u{1b}[2J\u{9b}\t"), "\\033[2J\\302\\233\\011");
    // Override, isolate, line and paragraph separators, no width, no break.
    for odd in [
        "\u{202e}", "\u{2066}", "\u{2028}", "\u{2029}", "\u{200b}", "\u{a0}", "\u{feff}",
    ] {
        let shown = word(odd);
        assert!(
            shown.bytes().all(|byte| byte == b'\\' || byte.is_ascii_digit()),
            "{shown}"
        );
    }
}
