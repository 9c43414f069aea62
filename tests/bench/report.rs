//! Measured values against their budgets.

use serde_json::{Value, json};

#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Value>,
    exceeded: bool,
}

impl Report {
    /// Records a value with its budget, an upper limit, and how it was computed.
    pub(crate) fn add(&mut self, name: &str, value: f64, unit: &str, budget: f64, detail: Value) {
        let within = value <= budget;
        self.exceeded |= !within;
        let rounded = (value * 100.0).round() / 100.0;
        eprintln!(
            "  {name}: {rounded} {unit} of {budget}{}",
            if within { "" } else { "  EXCEEDED" }
        );
        self.rows.push(json!({
            "name": name, "value": rounded, "unit": unit, "budget": budget, "within": within, "detail": detail,
        }));
    }

    /// Records details that have no budget and explain values that have.
    pub(crate) fn note(&mut self, name: &str, detail: &Value) {
        eprintln!("  {name}: {detail}");
        self.rows.push(json!({ "name": name, "detail": detail }));
    }

    /// Records that something cannot be measured here, and why.
    pub(crate) fn skip(&mut self, name: &str, why: &str) {
        eprintln!("  {name}: not measured: {why}");
        self.rows.push(json!({ "name": name, "skipped": why }));
    }

    pub(crate) fn print(&self) {
        println!("{:#}", json!({ "budgets": self.rows }));
    }

    pub(crate) fn all_within(&self) -> bool {
        !self.exceeded
    }
}

/// Returns the quantile `share` (0 to 1) by nearest rank.
pub(crate) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length"
    )]
    let rank = (share * values.len() as f64).ceil() as usize;
    values[rank.clamp(1, values.len()) - 1]
}
