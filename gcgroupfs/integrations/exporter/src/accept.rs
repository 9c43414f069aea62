//! The format of metrics that a client prefers, from its `Accept` header.

/// Text format of Prometheus, which a client gets that names no format.
pub(crate) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns whether a client prefers OpenMetrics to Prometheus's text format, or has no preference among the
/// two that it names.
pub(crate) fn prefers_open_metrics(accept: &str) -> bool {
    let (mut open, mut text) = (0.0_f32, 0.0_f32);
    for part in accept.split(',') {
        let mut words = part.split(';').map(str::trim);
        let kind = words.next().unwrap_or_default().to_ascii_lowercase();
        let (mut quality, mut is_known) = (1.0_f32, true);
        for (name, value) in words.filter_map(|word| word.split_once('=')) {
            match &*name.to_ascii_lowercase() {
                "q" => quality = value.parse().unwrap_or(0.0),
                "version" => is_known = value.trim_matches('"') == "1.0.0" || kind.starts_with("text/"),
                _ => {}
            }
        }
        match &*kind {
            "application/openmetrics-text" if is_known => open = quality.max(open),
            "text/plain" | "text/*" => text = quality.max(text),
            _ => {}
        }
    }
    open > 0.0 && open >= text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_is_sent_to_clients_that_prefer_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;\
                          version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            (prometheus, true),
            ("application/openmetrics-text", true),
            (
                "Application/OpenMetrics-Text; version=\"1.0.0\"; charset=utf-8",
                true,
            ),
            ("application/openmetrics-text, text/plain", true),
            ("application/openmetrics-text;version=0.0.1", false),
            ("application/openmetrics-text;q=0.2, text/plain;q=0.9", false),
            ("application/openmetrics-text;q=0", false),
            ("text/plain;version=0.0.4", false),
            ("text/html, */*;q=0.8", false),
            ("*/*", false),
            ("", false),
        ] {
            assert_eq!(prefers_open_metrics(accept), expected, "{accept}");
        }
    }
}
