//! Expressions of `gcgroupfs wait`: a comparison with a value of a control file. No file is known here by
//! name.

use std::cmp::Ordering;
use std::str::FromStr;

use gcgroupfs_model::text::parse_bytes;

/// Whether an operator accepts the order of the shown value relative to the given one.
type Accepts = fn(Ordering) -> bool;

/// Operators, in the order of the search: a longer one precedes its prefix.
const OPERATORS: &[(&str, Accepts)] = &[
    ("!=", Ordering::is_ne),
    ("<=", Ordering::is_le),
    (">=", Ordering::is_ge),
    ("=", Ordering::is_eq),
    ("<", Ordering::is_lt),
    (">", Ordering::is_gt),
];

/// `KEY OPERATOR VALUE`; without a key for a file with a single value.
#[derive(Debug, Clone)]
pub(super) struct Expression {
    text: String,
    key: String,
    operator: &'static str,
    accepts: Accepts,
    value: String,
}

/// Result of an evaluation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Holds,
    /// Does not hold; the text says what is missing, or is empty.
    Not(String),
    /// Cannot come to hold; the text says why.
    Senseless(String),
}

impl FromStr for Expression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let at = text.find(['!', '<', '>', '=']);
        let (key, rest) = text.split_at(at.ok_or("an operator is missing: = != < <= > >=")?);
        let found = OPERATORS.iter().find(|(operator, _)| rest.starts_with(operator));
        let (operator, accepts) = found.ok_or("operators are = != < <= > >=")?;
        let value = rest.strip_prefix(operator).unwrap_or_default().trim();
        if value.is_empty() {
            return Err("a value is missing".to_owned());
        }
        let expression = Self {
            text: text.to_owned(),
            key: key.trim().to_owned(),
            operator,
            accepts: *accepts,
            value: value.to_owned(),
        };
        if expression.is_ordering() && number(value).is_none() {
            return Err(format!("{operator} needs a number, got {value}"));
        }
        Ok(expression)
    }
}

impl Expression {
    /// Evaluates the expression on a file's contents.
    pub(super) fn judge(&self, text: &str) -> Verdict {
        let Some(shown) = self.shown(text) else {
            return Verdict::Senseless(if self.key.is_empty() {
                format!("{}: the file has keys, so the expression needs one", self.text)
            } else {
                format!("the file has no key {}", self.key)
            });
        };
        let order = match (number(shown), number(&self.value)) {
            (Some(shown), Some(value)) => shown.cmp(&value),
            _ if self.is_ordering() => {
                return Verdict::Senseless(format!("{}: {shown} is not a number", self.text));
            }
            _ => shown.cmp(&self.value),
        };
        if (self.accepts)(order) {
            Verdict::Holds
        } else {
            Verdict::Not(String::new())
        }
    }

    fn is_ordering(&self) -> bool {
        !matches!(self.operator, "=" | "!=")
    }

    /// Returns the key's value; without a key, the whole contents, which must be one word.
    fn shown<'a>(&self, text: &'a str) -> Option<&'a str> {
        if self.key.is_empty() {
            let mut words = text.split_ascii_whitespace();
            return words.next().filter(|_| words.next().is_none());
        }
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(' ')?;
            // Lines of nr_pending_kernels have a colon.
            (key.trim_end_matches(':') == self.key).then(|| value.trim())
        })
    }
}

/// Parses a number in the control files' format: `8G`, or `max`, which is above all others.
fn number(text: &str) -> Option<u64> {
    parse_bytes(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: &str = "populated 1\nfrozen 0\nhook ok\n";

    fn judge(expression: &str, text: &str) -> Verdict {
        expression.parse::<Expression>().unwrap().judge(text)
    }

    #[test]
    fn judge_compares_numbers_or_words() {
        for (expression, text, want) in [
            ("frozen=0", EVENTS, true),
            ("frozen=1", EVENTS, false),
            ("frozen!=1", EVENTS, true),
            ("hook=ok", EVENTS, true),
            ("hook!=lost", EVENTS, true),
            ("max>=10", "max 9\n", false),
            ("max>=10", "max 10\n", true),
            ("max<10", "max 9\n", true),
            (" max <= 9 ", "max 9\n", true),
            ("max>9", "max 100\n", true),
            ("nr_pending_kernels=0", "nr_pending_kernels: 0\n", true),
            ("=8G", "8589934592\n", true),
            ("<1M", "1048575\n", true),
            ("<1M", "1048576\n", false),
            ("=max", "max\n", true),
            (">1T", "max\n", true),
        ] {
            let want = if want {
                Verdict::Holds
            } else {
                Verdict::Not(String::new())
            };
            assert_eq!(judge(expression, text), want, "{expression} of {text:?}");
        }
    }

    #[test]
    fn judge_impossible_expression_is_senseless() {
        for (expression, text) in [
            ("frozn=1", EVENTS),
            ("=1", EVENTS),
            ("hook>1", EVENTS),
            ("frozen=1", "17\n"),
            ("<2", "word\n"),
            ("=1", ""),
        ] {
            assert!(
                matches!(judge(expression, text), Verdict::Senseless(_)),
                "{expression} of {text:?}"
            );
        }
    }

    #[test]
    fn parse_refuses_malformed_expressions() {
        for text in ["", "frozen", "frozen 1", "=", "frozen=", "a!b", "x<y", "hook>=ok"] {
            assert!(text.parse::<Expression>().is_err(), "{text}");
        }
    }
}
