//! Order of rows by a column.

use std::cmp::Reverse;

use super::TopOrder::{Descending, Unsorted};
use super::{COLUMNS, Column, column, find};
use crate::cli::row::Row;

/// Column by which the rows are sorted.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct Order {
    pub(in crate::cli) column: &'static Column,
    pub(in crate::cli) is_descending: bool,
    /// Whether the sorted rows are in reverse, those that are equal too.
    pub(in crate::cli) is_flipped: bool,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            column: &COLUMNS[0],
            is_descending: false,
            is_flipped: false,
        }
    }
}

impl Order {
    /// Parses a column of `ls` by which to sort, with `-` before it for the reverse order.
    ///
    /// # Errors
    /// The text says which columns there are.
    pub(in crate::cli) fn parse(text: &str) -> Result<Self, String> {
        let name = text.strip_prefix('-');
        Ok(Self {
            column: column(name.unwrap_or(text))?,
            is_descending: name.is_some(),
            is_flipped: false,
        })
    }

    /// Returns the order of `top` by the column of this name.
    ///
    /// # Errors
    /// The text says which there are.
    pub(in crate::cli) fn of_top(name: &str) -> Result<Self, String> {
        find(sortable(), name).map(Self::of)
    }

    fn of(column: &'static Column) -> Self {
        Self {
            column,
            is_descending: column.top.is_some_and(|top| top.order == Descending),
            is_flipped: false,
        }
    }

    /// Returns the order of `top` by the next column.
    pub(in crate::cli) fn next(self) -> Self {
        let at = sortable().position(|column| column.name == self.column.name);
        let next = sortable().cycle().nth(at.unwrap_or(0) + 1);
        Self {
            is_flipped: self.is_flipped,
            ..next.map_or(self, Self::of)
        }
    }

    pub(in crate::cli) fn sort(self, rows: &mut [Row]) {
        let value = self.column.value;
        match self.is_descending {
            true => rows.sort_by_cached_key(|row| Reverse(value(row))),
            false => rows.sort_by_cached_key(value),
        }
        if self.is_flipped {
            rows.reverse();
        }
    }
}

fn sortable() -> impl Iterator<Item = &'static Column> + Clone {
    let is_sortable = |column: &&Column| column.top.is_some_and(|top| top.order != Unsorted);
    COLUMNS.iter().filter(is_sortable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_goes_round_all_columns() {
        let start = Order::default();
        let mut order = start.next();
        let mut nr_columns = 1;
        while order.column.name != start.column.name {
            order = order.next();
            nr_columns += 1;
        }
        assert_eq!(nr_columns, sortable().count());
        assert!(Order::of_top("gpu").is_err());
    }
}
