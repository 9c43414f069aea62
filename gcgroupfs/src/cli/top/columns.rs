//! Columns of the screen; a new column is a row here.

use std::cmp::Ordering;

use super::activity::POINTS;
use super::bars::sparkline;
use super::row::Row;
use super::target::Target;
use crate::cli::format::size;

/// Row of the table of columns.
#[derive(Debug)]
pub(super) struct Column {
    /// Name in `--sort`.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// Width of the cells; 0: the rest of the line.
    pub(super) width: usize,
    is_number: bool,
    /// Narrowest screen on which it is shown.
    least_screen: usize,
    cell: fn(&Row, bool) -> String,
    /// Order of two rows in a sorted table; `None`: it is not sorted by this column.
    order: Option<fn(&Row, &Row) -> Ordering>,
}

/// Narrowest screen with all columns.
const WIDE: usize = 100;

const COLUMNS: &[Column] = &[
    Column {
        name: "pid",
        title: "PID",
        width: 7,
        is_number: true,
        least_screen: 0,
        cell: |row, _| match row.target {
            Target::Process(pid) => pid.to_string(),
            Target::Group(_) => String::new(),
        },
        // Rows come in the order of pids and paths.
        order: Some(|_, _| Ordering::Equal),
    },
    Column {
        name: "user",
        title: "USER",
        width: 8,
        is_number: false,
        least_screen: WIDE,
        cell: |row, _| row.user.clone(),
        order: Some(|one, other| one.user.cmp(&other.user)),
    },
    Column {
        name: "gpu",
        title: "GPU",
        width: 4,
        is_number: true,
        least_screen: 0,
        cell: |row, _| {
            let gpus: Vec<String> = row.gpus.iter().map(usize::to_string).collect();
            gpus.join(",")
        },
        order: None,
    },
    Column {
        name: "memory",
        title: "MEM",
        width: 6,
        is_number: true,
        least_screen: 0,
        cell: |row, _| size(row.usage.memory.current),
        order: Some(|one, other| other.usage.memory.current.cmp(&one.usage.memory.current)),
    },
    Column {
        name: "swap",
        title: "SWAP",
        width: 6,
        is_number: true,
        least_screen: 0,
        cell: |row, _| size(row.usage.memory.swap.current),
        order: Some(|one, other| {
            other
                .usage
                .memory
                .swap
                .current
                .cmp(&one.usage.memory.swap.current)
        }),
    },
    Column {
        name: "limit",
        title: "LIMIT",
        width: 6,
        is_number: true,
        least_screen: 0,
        cell: |row, _| limit(row.usage.memory.effective_limit),
        order: Some(|one, other| bound(one).cmp(&bound(other))),
    },
    Column {
        name: "usage",
        title: "GPU%",
        width: 5,
        is_number: true,
        least_screen: 0,
        cell: |row, _| {
            row.activity
                .gpu
                .map_or_else(|| "-".to_owned(), |gpu| format!("{gpu:.1}"))
        },
        order: Some(|one, other| {
            other
                .activity
                .gpu
                .partial_cmp(&one.activity.gpu)
                .unwrap_or(Ordering::Equal)
        }),
    },
    Column {
        name: "priority",
        title: "PRI",
        width: 3,
        is_number: true,
        least_screen: 0,
        cell: |row, _| row.usage.compute.priority.to_string(),
        order: Some(|one, other| one.usage.compute.priority.cmp(&other.usage.compute.priority)),
    },
    Column {
        name: "state",
        title: "STATE",
        width: 10,
        is_number: false,
        least_screen: 0,
        cell: |row, _| row.activity.state.name().to_owned(),
        order: Some(|one, other| other.activity.state.cmp(&one.activity.state)),
    },
    Column {
        name: "pressure",
        title: "PRES%",
        width: 5,
        is_number: true,
        least_screen: 0,
        cell: |row, _| format!("{:.1}", pressure(row)),
        order: Some(|one, other| pressure(other).total_cmp(&pressure(one))),
    },
    Column {
        name: "history",
        title: "GPU% HISTORY",
        width: 12,
        is_number: true,
        least_screen: WIDE,
        cell: |row, is_ascii| {
            let history = row.activity.history.iter().copied();
            sparkline(&history.collect::<Vec<_>>(), 12.min(POINTS), is_ascii)
        },
        order: None,
    },
    Column {
        name: "name",
        title: "NAME",
        width: 0,
        is_number: false,
        least_screen: 0,
        cell: |row, _| {
            let indent = "  ".repeat(row.depth);
            let lease = match row.lease.as_str() {
                "" => String::new(),
                lease => format!("  {lease}"),
            };
            match (row.is_group(), row.is_folded) {
                (true, true) => format!("{indent}+ {}/{lease}", row.name),
                (true, false) => format!("{indent}- {}/{lease}", row.name),
                (false, _) => format!("{indent}{}", row.name),
            }
        },
        order: Some(|one, other| one.name.cmp(&other.name)),
    },
];

fn bound(row: &Row) -> u64 {
    row.usage.memory.effective_limit.unwrap_or(u64::MAX)
}

/// Formats a limit; `None` is max.
pub(super) fn limit(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "max".to_owned(), size)
}

/// Returns the percentage of the last 10 s in which a thread waited, to submit or for memory: the higher one.
fn pressure(row: &Row) -> f64 {
    let stalls = [&row.usage.compute.pressure, &row.usage.memory.pressure];
    let some = stalls.into_iter().flatten().map(|pressure| pressure.some.avg10);
    some.fold(0.0, f64::max)
}

impl Column {
    /// Returns the cell, as wide as the column; a longer text is cut.
    pub(super) fn cell(&self, row: &Row, is_ascii: bool) -> String {
        self.fit((self.cell)(row, is_ascii))
    }

    pub(super) fn heading(&self) -> String {
        self.fit(self.title.to_owned())
    }

    fn fit(&self, text: String) -> String {
        let width = self.width;
        match (width, self.is_number) {
            (0, _) => text,
            (_, true) => format!("{:>width$}", text.chars().take(width).collect::<String>()),
            (_, false) => format!("{:<width$}", text.chars().take(width).collect::<String>()),
        }
    }
}

/// Returns the columns that a screen of this width has room for.
pub(super) fn columns(screen: usize) -> impl Iterator<Item = &'static Column> {
    COLUMNS.iter().filter(move |column| column.least_screen <= screen)
}

/// Column by which the rows are sorted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sorting {
    pub(super) column: &'static Column,
    pub(super) is_reverse: bool,
}

impl Default for Sorting {
    fn default() -> Self {
        Self {
            column: &COLUMNS[0],
            is_reverse: false,
        }
    }
}

impl Sorting {
    /// Returns the sorting by the column of this name.
    ///
    /// # Errors
    /// The text says which there are.
    pub(super) fn by(name: &str) -> Result<Self, String> {
        let found = sortable().find(|column| column.name == name);
        let column = found.ok_or_else(|| {
            let names: Vec<&str> = sortable().map(|column| column.name).collect();
            format!("columns are {}", names.join(", "))
        })?;
        Ok(Self {
            column,
            is_reverse: false,
        })
    }

    /// Returns the sorting by the next column.
    pub(super) fn next(self) -> Self {
        let at = sortable().position(|column| column.name == self.column.name);
        let next = sortable().cycle().nth(at.unwrap_or(0) + 1);
        Self {
            column: next.unwrap_or(self.column),
            is_reverse: self.is_reverse,
        }
    }

    pub(super) fn sort(self, rows: &mut [Row]) {
        if let Some(order) = self.column.order {
            rows.sort_by(order);
        }
        if self.is_reverse {
            rows.reverse();
        }
    }
}

fn sortable() -> impl Iterator<Item = &'static Column> + Clone {
    COLUMNS.iter().filter(|column| column.order.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_leave_room_for_names_at_80_columns() {
        let fixed: usize = columns(80).map(|column| column.width + 1).sum();
        assert!(fixed <= 64, "{fixed}");
    }

    #[test]
    fn sorting_goes_round_all_columns() {
        let start = Sorting::default();
        let mut sorting = start.next();
        let mut nr_columns = 1;
        while sorting.column.name != start.column.name {
            sorting = sorting.next();
            nr_columns += 1;
        }
        assert_eq!(nr_columns, sortable().count());
        assert!(Sorting::by("gpu").is_err());
    }
}
