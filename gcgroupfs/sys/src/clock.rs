//! Local time.

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
}
