//! Draws the screen, and prints it as text.

use std::fmt::Write as _;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Position, Rect};
use ratatui::style::{Color, Modifier, Style as Look, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::keys::BINDINGS;
use super::state::{App, Mode};
use crate::cli::bars::{meter, sparkline};
use crate::cli::columns::{awaited, limit, moved, on_screen, words};
use crate::cli::format::size;
use crate::cli::row::{Row, What};
use gcgroup_client::node::{Activities, Device, OnDevice, POINTS, Pressure, State};
use gcgroupfs_model::text::word;
use gcgroupfs_sys::clock::local_time;

/// Abilities of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) has_color: bool,
    pub(super) is_ascii: bool,
}

impl Style {
    /// Derives it from environment variables: `NO_COLOR` (no-color.org), and the locale's.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set);
        let locale = locale.unwrap_or_default().to_lowercase();
        Self {
            has_color: set(&"NO_COLOR").is_none(),
            is_ascii: !(locale.contains("utf-8") || locale.contains("utf8")),
        }
    }

    fn color(self, color: Color) -> Look {
        if self.has_color {
            Look::new().fg(color)
        } else {
            Look::new()
        }
    }
}

/// Least width of a GPU's history, and of the screen from which on it is longer.
const HISTORY: usize = 14;
const WIDE: usize = 120;

/// Longest message, lines.
const MAX_MESSAGE: u16 = 3;

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App, style: Style) {
    let area = frame.area();
    if let Mode::Text(lines, first) = &app.mode {
        let shown = lines.iter().skip(*first).map(|line| Line::from(printable(line)));
        let last = Line::from("Up and Down scroll; any other key returns").bold();
        let [text, below] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(area);
        app.page = usize::from(text.height).max(1);
        let shown = Paragraph::new(shown.collect::<Vec<_>>()).wrap(Wrap { trim: false });
        frame.render_widget(shown, text);
        frame.render_widget(last, below);
        return;
    }
    let nr_devices = u16::try_from(app.snapshot.devices.len()).unwrap_or(u16::MAX);
    let bottom = bottom(app, area.width.into(), style);
    let height = u16::try_from(bottom.len())
        .unwrap_or(MAX_MESSAGE)
        .min(MAX_MESSAGE);
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(nr_devices.min(area.height / 3)),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
        Constraint::Length(height),
    ]);
    let [
        title_area,
        devices_area,
        heading_area,
        rows_area,
        detail_area,
        bottom_area,
    ] = areas.areas(area);
    frame.render_widget(Line::from(title(app)).bold(), title_area);
    let devices: Vec<Line<'_>> = app
        .snapshot
        .devices
        .iter()
        .map(|device| device_line(device, &app.activities, style, area.width.into()))
        .collect();
    frame.render_widget(Paragraph::new(devices), devices_area);
    frame.render_widget(heading(app, heading_area.width.into()), heading_area);
    rows(frame, app, rows_area, style);
    let detail = app.selected().map(|row| detail(row, &app.rows));
    let detail = detail.unwrap_or_default();
    frame.render_widget(Line::from(detail).dim(), detail_area);
    frame.render_widget(Paragraph::new(bottom), bottom_area);
    if let Mode::Prompt(question, text) = &app.mode {
        let typed = question.text(app.selected()).chars().count() + text.chars().count();
        let column = u16::try_from(typed)
            .unwrap_or(u16::MAX)
            .min(area.width.saturating_sub(1));
        frame.set_cursor_position(Position::new(column, bottom_area.y));
    }
}

/// Draws the rows around the selected one.
fn rows(frame: &mut Frame<'_>, app: &mut App, area: Rect, style: Style) {
    app.page = usize::from(area.height).max(1);
    let first = (app.cursor / app.page) * app.page;
    let columns = on_screen(area.width.into(), &app.columns);
    let lines = app.rows.iter().enumerate().skip(first).take(app.page);
    let lines = lines.map(|(index, row)| {
        let mut cells = Vec::new();
        for (column, top) in &columns {
            let look = match column.name {
                "state" => state(row.activity.state, style),
                "name" if row.is_group() => Look::new().add_modifier(Modifier::BOLD),
                _ => Look::new(),
            };
            cells.push(Span::styled(top.cell(column, row, style.is_ascii), look));
            cells.push(Span::raw(" "));
        }
        let line = Line::from(cells);
        if index != app.cursor {
            return line;
        }
        let rest = usize::from(area.width).saturating_sub(line.width());
        let mut line = line;
        line.push_span(" ".repeat(rest));
        line.reversed()
    });
    let lines: Vec<Line<'_>> = lines.collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn state(state: State, style: Style) -> Look {
    match state {
        State::Idle => Look::new(),
        State::Running => style.color(Color::Green),
        State::Throttled => style.color(Color::Yellow),
        State::Swapping => style.color(Color::Magenta),
        State::Freezing | State::Frozen | State::Away | State::Suspending | State::Suspended => {
            style.color(Color::Cyan)
        }
        State::Refused | State::Lost => style.color(Color::Red).add_modifier(Modifier::BOLD),
    }
}

fn title(app: &App) -> String {
    let snapshot = &app.snapshot;
    let count =
        |number: usize, one: &str, many: &str| format!("{number} {}", if number == 1 { one } else { many });
    let name = match app.replay {
        Some((time, true)) => format!("{} (stopped)", local_time(time, true)),
        Some((time, false)) => local_time(time, true),
        None => "gcgroupfs top".to_owned(),
    };
    let mut title = format!(
        "{name}: {}, {}, {}, policy {}, sort {}",
        count(snapshot.devices.len(), "GPU", "GPUs"),
        count(snapshot.groups.len(), "group", "groups"),
        count(snapshot.processes.len(), "process", "processes"),
        word(&snapshot.policy),
        app.selection.order.unwrap_or_default().column.name,
    );
    if !app.selection.filter.is_empty() {
        // Writing to a String cannot fail.
        let _ = write!(title, ", filter {}", word(&app.selection.filter));
    }
    title
}

/// Returns a line such as `GPU0 [||||      1.5G/8G] util  45% .:-=+ 60C 70.5W NAME`.
fn device_line(device: &Device, activities: &Activities, style: Style, width: usize) -> Line<'static> {
    let memory = &device.memory;
    let used = memory.used.or(memory.charged).unwrap_or(0);
    let total = memory.total.unwrap_or(0);
    let known = |value: Option<u64>, unit: &str| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value}{unit}"))
    };
    let length = (HISTORY + width.saturating_sub(WIDE)).min(POINTS);
    let history: Vec<u64> = activities.device(device.index).collect();
    let power = device
        .power_mw
        .map_or_else(|| "-".to_owned(), |mw| format!("{}W", mw / 1000));
    Line::from(vec![
        Span::styled(format!("GPU{:<2}", device.index), style.color(Color::Cyan)),
        Span::raw(meter(used, total)),
        Span::raw(format!(" util {:>4} ", known(device.utilization, "%"))),
        Span::styled(
            sparkline(&history, length, style.is_ascii),
            style.color(Color::Green),
        ),
        Span::raw(format!(
            " {:>4} {power:>5} {}",
            known(device.temperature, "C"),
            words(&device.name)
        )),
    ])
}

/// Returns the titles of the columns; that of the sorted one is not reversed.
fn heading(app: &App, width: usize) -> Line<'static> {
    let mut spans = Vec::new();
    let sorted = app.selection.order.unwrap_or_default().column.name;
    for (column, top) in on_screen(width, &app.columns) {
        let text = format!("{} ", top.fit(top.title, column.is_number));
        let is_sorted = column.name == sorted;
        spans.push(if is_sorted {
            Span::raw(text).bold()
        } else {
            Span::raw(text).reversed()
        });
    }
    let line = Line::from(spans);
    let rest = width.saturating_sub(line.width());
    let mut line = line;
    line.push_span(Span::raw(" ".repeat(rest)).reversed());
    line
}

/// Returns what has no column, of the selected row.
fn detail(row: &Row, rows: &[Row]) -> String {
    let usage = row.whole();
    // The process for which a GPU was kept free most of the time.
    let shares = |other: &Row| {
        let is_here = |on: &OnDevice| row.devices().iter().any(|own| own.index == on.index);
        other.target != row.target && other.devices().iter().any(is_here)
    };
    let others = rows
        .iter()
        .filter(|other| !other.is_group() && other.activity.held >= 1.0 && shares(other));
    let other = others.max_by(|one, other| one.activity.held.total_cmp(&other.activity.held));
    let held = match other.filter(|_| row.activity.state == State::Throttled) {
        Some(other) => {
            let (of, percent) = (other.target.path(), other.activity.held);
            format!(", GPU kept idle for {of} {percent:.0}%")
        }
        None => String::new(),
    };
    let wait = match row.what() {
        What::Process(process) => process.waits_for(None),
        What::Group(_) => None,
    };
    let wait = wait.map_or_else(String::new, |wait| format!(", waits for {}", awaited(wait)));
    let moving = row
        .activity
        .moving
        .as_ref()
        .map_or_else(String::new, |one| format!(", moves {}", moved(one)));
    let pressure = |pressure: &Option<Pressure>| pressure.as_ref().map_or(0.0, |it| it.some.avg10);
    let place = row
        .group()
        .map_or_else(|| "-".to_owned(), |path| format!("/{}", word(path)));
    let quota = usage
        .compute
        .max
        .quota_usec
        .map_or_else(|| "max".to_owned(), |usec| format!("{usec}us"));
    format!(
        "{place} {}: limit {}, peak {}, quota {quota}, refused {}, waits {:.1}%, for memory {:.1}%{moving}{wait}{held}",
        word(row.user()),
        limit(usage.memory.limit),
        size(usage.memory.peak),
        usage.refusals(),
        pressure(&usage.compute.pressure),
        pressure(&usage.memory.pressure),
    )
}

/// Returns the question, the outage, the message or the keys.
fn bottom(app: &App, width: usize, style: Style) -> Vec<Line<'static>> {
    let error = style.color(Color::Red).add_modifier(Modifier::BOLD);
    match (&app.mode, &app.outage, &app.message) {
        (Mode::Prompt(question, text), ..) => {
            let question = question.text(app.selected());
            vec![Line::from(vec![
                Span::raw(question).bold(),
                Span::raw(printable(text)),
            ])]
        }
        (_, Some(outage), _) => broken(outage, width, error),
        (_, _, Some(message)) if message.is_error => broken(&message.text, width, error),
        (_, _, Some(message)) => broken(&message.text, width, Look::new()),
        _ => {
            let labels = BINDINGS
                .iter()
                .map(|binding| binding.label)
                .filter(|label| !label.0.is_empty());
            let spans = labels.flat_map(|(key, name)| [Span::raw(key).bold(), Span::raw(name).reversed()]);
            vec![Line::from(spans.collect::<Vec<_>>())]
        }
    }
}

/// Breaks a text into lines of at most `width` characters.
fn broken(text: &str, width: usize, look: Look) -> Vec<Line<'static>> {
    let characters: Vec<char> = printable(text).chars().collect();
    let lines = characters.chunks(width.max(1));
    lines
        .map(|line| Line::styled(line.iter().collect::<String>(), look))
        .collect()
}

/// Returns text in which control characters are `?`.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Returns the whole table as text, with an empty line at its end.
pub(super) fn text(app: &App) -> String {
    // All columns of `top`, or those that are chosen, in ASCII.
    let width = if app.columns.is_empty() {
        WIDE
    } else {
        usize::from(u16::MAX)
    };
    let columns = on_screen(width, &app.columns);
    let style = Style {
        has_color: false,
        is_ascii: true,
    };
    let mut lines = vec![title(app)];
    let devices = app.snapshot.devices.iter();
    lines.extend(devices.map(|device| device_line(device, &app.activities, style, WIDE).to_string()));
    let headings = columns
        .iter()
        .map(|(column, top)| top.fit(top.title, column.is_number));
    lines.push(headings.collect::<Vec<_>>().join(" "));
    for row in &app.rows {
        let cells = columns.iter().map(|(column, top)| top.cell(column, row, true));
        lines.push(cells.collect::<Vec<_>>().join(" "));
    }
    lines
        .iter()
        .map(|line| format!("{}\n", line.trim_end()))
        .chain(["\n".to_owned()])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locale_and_no_color_decide_on_the_style() {
        let style = |set: &[(&str, &str)]| {
            let set: Vec<(String, String)> = set.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
            let style = Style::of(|name| {
                set.iter()
                    .find(|(n, _)| n == name)
                    .map(|(_, value)| value.clone())
            });
            (style.has_color, style.is_ascii)
        };
        assert_eq!(style(&[]), (true, true));
        assert_eq!(style(&[("LANG", "de_DE.UTF-8")]), (true, false));
        assert_eq!(style(&[("LC_ALL", "C"), ("LANG", "de_DE.UTF-8")]), (true, true));
        assert_eq!(
            style(&[("LC_ALL", ""), ("LANG", "C.utf8"), ("NO_COLOR", "")]),
            (true, false)
        );
        assert_eq!(style(&[("NO_COLOR", "1")]), (false, true));
    }
}
