//! Columns of `gcgroupfs ls` and `top`.

mod order;
mod table;
mod value;

use gcgroup_client::node::{FILES, POINTS};

use self::table::{COLUMNS, OF_COLUMNS, OF_HOST, RATES};
use self::value::HISTORY;
use super::bars::sparkline;
use super::row::Row;

pub(super) use self::order::Order;
pub(super) use self::value::{Value, awaited, limit, moved, words};

/// Row of the table of columns.
#[derive(Debug)]
pub(super) struct Column {
    /// Name on the command line; in capitals, the title in `ls`.
    pub(super) name: &'static str,
    pub(super) is_number: bool,
    pub(super) value: fn(&Row) -> Value,
    /// Help of `ls`; empty: it is not there.
    help: &'static str,
    /// `None`: it is not in `top`.
    pub(super) top: Option<Top>,
}

/// A column in `top`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Top {
    pub(super) title: &'static str,
    /// Width of the cells; 0: the rest of the line.
    pub(super) width: usize,
    /// A screen that is too narrow lacks the columns of the highest ranks; 0: it is on every screen.
    rank: u8,
    order: TopOrder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TopOrder {
    Ascending,
    Descending,
    Unsorted,
}

/// Least width of names.
const NAME: usize = 15;

/// Width of names from which on a wider screen has longer histories.
const WIDE_NAME: usize = 40;

/// Width of the cells of a column that `top` does not have by itself: of numbers, and of texts.
const OTHERS: [usize; 2] = [10, 18];

/// Columns of a table, and of a tree, unless others are asked for.
pub(super) const TABLE: &[&str] = &[
    "pid",
    "user",
    "comm",
    "group",
    "gpu",
    "memory",
    "limit",
    "priority",
    "frozen",
    "suspended",
    "kernels",
];
pub(super) const TREE: &[&str] = &[
    "name",
    "user",
    "gpu",
    "memory",
    "limit",
    "priority",
    "frozen",
    "suspended",
    "lease",
    "kernels",
];

/// Returns the files that columns of `ls` are computed from.
pub(super) fn files(columns: &[&Column]) -> Vec<&'static str> {
    let is_needed = |file: &&&str| {
        let row = OF_COLUMNS.iter().find(|(name, _)| name == *file);
        row.is_none_or(|(_, of)| columns.iter().any(|column| of.contains(&column.name)))
    };
    FILES.iter().filter(is_needed).copied().collect()
}

impl Column {
    /// Returns the title in `ls`.
    pub(super) fn title(&self) -> String {
        self.name.to_uppercase()
    }

    /// Returns whether the column shows what the kernel tells of a process.
    pub(super) fn is_of_host(&self) -> bool {
        OF_HOST.contains(&self.name)
    }

    /// Returns whether the column needs two snapshots.
    pub(super) fn needs_rates(&self) -> bool {
        RATES.contains(&self.name)
    }

    /// Returns the column as `top` shows it if it is chosen.
    fn in_top(&self) -> Top {
        self.top.unwrap_or(Top {
            title: self.name,
            width: OTHERS[usize::from(!self.is_number)].max(self.name.len()),
            rank: 1,
            order: TopOrder::Unsorted,
        })
    }
}

impl Top {
    /// Returns the cell of a row, as wide as the column.
    pub(super) fn cell(self, column: &Column, row: &Row, is_ascii: bool) -> String {
        let text = match (column.value)(row) {
            Value::Absent => String::new(),
            Value::History(points) => sparkline(&points, self.width, is_ascii),
            value => value.to_string(),
        };
        self.fit(&text, column.is_number)
    }

    /// Returns a text as wide as the column; a longer one is cut.
    pub(super) fn fit(self, text: &str, is_number: bool) -> String {
        let width = self.width;
        match (width, is_number) {
            (0, _) => text.to_owned(),
            (_, true) => format!("{:>width$}", text.chars().take(width).collect::<String>()),
            (_, false) => format!("{:<width$}", text.chars().take(width).collect::<String>()),
        }
    }
}

/// Returns columns of `top`, the chosen ones or its own, that a screen of this width has room for; the name
/// is always among them.
pub(super) fn on_screen(width: usize, chosen: &[&'static Column]) -> Vec<(&'static Column, Top)> {
    let own = COLUMNS.iter().filter(|column| column.top.is_some());
    let name = own.clone().filter(|column| column.name == "name");
    let chosen = chosen.iter().copied().filter(|column| column.name != "name");
    let mut columns: Vec<&Column> = chosen.chain(name).collect();
    if columns.len() < 2 {
        columns = own.collect();
    }
    let shown = columns.into_iter().map(|column| (column, column.in_top()));
    let mut shown: Vec<(&Column, Top)> = shown.collect();
    let fixed = |shown: &[(&Column, Top)]| shown.iter().map(|(_, top)| top.width + 1).sum::<usize>() - 1;
    while fixed(&shown) + NAME > width {
        let ranks = shown.iter().enumerate().filter(|(_, (_, top))| top.rank > 0);
        let Some((at, _)) = ranks.max_by_key(|(at, (_, top))| (top.rank, *at)) else {
            break;
        };
        shown.remove(at);
    }
    let rest = width.saturating_sub(fixed(&shown) + WIDE_NAME);
    if let Some((_, history)) = shown.iter_mut().find(|(column, _)| column.name == "history") {
        history.width = HISTORY + rest.min(POINTS - HISTORY);
    }
    shown
}

/// Parses the name of a column of `top`: its own, or one of `ls`.
///
/// # Errors
/// The text says which there are.
pub(super) fn of_top(name: &str) -> Result<&'static Column, String> {
    let own = COLUMNS.iter().filter(|column| column.top.is_some());
    match own.clone().find(|column| column.name == name) {
        Some(column) => Ok(column),
        None => find(
            own.chain(COLUMNS.iter().filter(|column| column.top.is_none())),
            name,
        ),
    }
}

/// Returns the columns of `ls` of these names.
pub(super) fn named(names: &[&str]) -> Vec<&'static Column> {
    names.iter().filter_map(|name| column(name).ok()).collect()
}

/// Parses the name of a column of `ls`.
///
/// # Errors
/// The text says which there are.
pub(super) fn column(name: &str) -> Result<&'static Column, String> {
    find(COLUMNS.iter().filter(|column| !column.help.is_empty()), name)
}

/// Returns the names of the columns of `ls`.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let columns = COLUMNS.iter().filter(|column| !column.help.is_empty());
    columns.map(|column| column.name)
}

fn find(
    columns: impl Iterator<Item = &'static Column> + Clone,
    name: &str,
) -> Result<&'static Column, String> {
    columns.clone().find(|column| column.name == name).ok_or_else(|| {
        let mut names: Vec<&str> = Vec::new();
        for column in columns {
            // Those of top and of ls may have the same name.
            if !names.contains(&column.name) {
                names.push(column.name);
            }
        }
        format!("columns are {}", names.join(", "))
    })
}

/// Returns the description of the columns of `ls`.
pub(super) fn help() -> String {
    let shown = COLUMNS.iter().filter(|column| !column.help.is_empty());
    let lines = shown.map(|column| format!("  {:<13} {}", column.name, column.help));
    let lines: Vec<String> = lines.collect();
    format!("Columns:\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_columns_exist() {
        assert_eq!(named(TABLE).len(), TABLE.len());
        assert_eq!(named(TREE).len(), TREE.len());
        assert!(column("nothing").is_err());
    }

    #[test]
    fn names_have_room_on_every_screen() {
        let names = |width, chosen: &[&'static Column]| -> Vec<&str> {
            let shown = on_screen(width, chosen);
            let fixed: usize = shown.iter().map(|(_, top)| top.width + 1).sum();
            assert!(fixed - 1 + NAME <= width.max(NAME), "{width}");
            shown.iter().map(|(column, _)| column.name).collect()
        };
        for width in 0..200 {
            assert_eq!(names(width, &[]).last(), Some(&"name"), "{width}");
        }
        assert_eq!(names(0, &[]), ["name"]);
        assert_eq!(
            names(120, &[]).len(),
            COLUMNS.iter().filter(|one| one.top.is_some()).count()
        );
        let chosen = ["name", "quota", "waits_for", "pid"].map(|name| of_top(name).unwrap());
        assert_eq!(names(80, &chosen), ["quota", "waits_for", "pid", "name"]);
        assert!(of_top("nothing").is_err());
    }

    #[test]
    fn wide_screen_has_longer_histories() {
        let width = |screen| {
            let shown = on_screen(screen, &[]);
            let history = shown.iter().find(|(column, _)| column.name == "history");
            history.map(|(_, top)| top.width)
        };
        assert_eq!(
            [width(80), width(120), width(300)],
            [None, Some(HISTORY), Some(POINTS)]
        );
        assert!(width(160) > width(120));
    }
}
