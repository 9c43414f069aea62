//! Measured values and their budgets.

use serde_json::{Value, json};

use crate::Setting;

/// Budget of a median.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Budget {
    /// No budget: a value for comparison.
    None,
    Most(f64),
    Least(f64),
    /// Target, and maximum distance from it.
    About(f64, f64),
}

impl Budget {
    fn is_kept(self, value: f64) -> bool {
        match self {
            Self::None => true,
            Self::Most(most) => value <= most,
            Self::Least(least) => value >= least,
            Self::About(goal, away) => (value - goal).abs() <= away,
        }
    }

    fn text(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Most(most) => format!("<= {}", round(most)),
            Self::Least(least) => format!(">= {}", round(least)),
            Self::About(goal, away) => format!("{} +- {}", round(goal), round(away)),
        }
    }
}

#[derive(Debug)]
struct Row {
    name: String,
    unit: &'static str,
    budget: Budget,
    /// One value for each repetition.
    values: Vec<f64>,
    detail: Value,
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    skipped: Vec<(String, String)>,
    failures: Vec<(String, String)>,
}

impl Report {
    /// Records the values of the repetitions; the budget applies to their median.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        unit: &'static str,
        budget: Budget,
        values: Vec<f64>,
        detail: Value,
    ) {
        let row = Row {
            name: name.into(),
            unit,
            budget,
            values,
            detail,
        };
        eprintln!("  {}", row.line());
        self.rows.push(row);
    }

    /// Records that something cannot be measured here, and why.
    pub(crate) fn skip(&mut self, name: &str, why: &str) {
        eprintln!("  {name}: left out: {why}");
        self.skipped.push((name.to_owned(), why.to_owned()));
    }

    /// Records that an arm failed.
    pub(crate) fn failed(&mut self, name: &str, error: &anyhow::Error) {
        eprintln!("  {name}: FAILED: {error:#}");
        self.failures.push((name.to_owned(), format!("{error:#}")));
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.failures.is_empty() && self.rows.iter().all(Row::is_kept)
    }

    /// Prints a table on stderr and JSON on stdout.
    pub(crate) fn print(&self, setting: &Setting) {
        eprintln!();
        for row in &self.rows {
            eprintln!("{}", row.line());
        }
        for (name, why) in &self.skipped {
            eprintln!("{name:52} left out: {why}");
        }
        for (name, why) in &self.failures {
            eprintln!("{name:52} FAILED: {why}");
        }
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        let pairs = |list: &[(String, String)], key: &str| -> Vec<Value> {
            list.iter()
                .map(|(name, why)| json!({ "name": name, key: why }))
                .collect()
        };
        let all = json!({
            "gpu": if setting.environment.is_simulated { "simulated" } else { "real" },
            "repetitions": setting.repetitions,
            "scale": setting.scale,
            "rows": rows,
            "skipped": pairs(&self.skipped, "why"),
            "failed": pairs(&self.failures, "error"),
        });
        println!("{all:#}");
    }
}

impl Row {
    fn is_kept(&self) -> bool {
        self.budget.is_kept(median(&self.values))
    }

    fn line(&self) -> String {
        let (least, most) = ends(&self.values);
        let verdict = match self.budget {
            Budget::None => "",
            _ if self.is_kept() => "met",
            _ => "NOT MET",
        };
        let middle = median(&self.values);
        let spread = format!("{} to {}", round(least), round(most));
        format!(
            "{:52} {:>9} {:4} {spread:>20}  {:14} {verdict}",
            self.name,
            round(middle).to_string(),
            self.unit,
            self.budget.text(),
        )
        .trim_end()
        .to_owned()
    }

    fn json(&self) -> Value {
        let (least, most) = ends(&self.values);
        json!({
            "name": self.name, "unit": self.unit, "median": median(&self.values), "least": least, "most": most,
            "values": self.values, "budget": self.budget.text(), "kept": self.is_kept(), "detail": self.detail,
        })
    }
}

fn ends(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

/// Rounds to an integer from 1000 on, otherwise to three decimals.
fn round(value: f64) -> f64 {
    let places = if value.abs() >= 1000.0 { 1.0 } else { 1000.0 };
    (value * places).round() / places
}

/// Returns the median; NaN if there are no values, which keeps no budget.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    }
}

/// Returns the quantile `share` (0 to 1) by nearest rank.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length"
    )]
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.clamp(1, sorted.len().max(1)) - 1)
        .copied()
        .unwrap_or(f64::NAN)
}
