//! Keys, as in htop where it has the same function; a new key is a row here.

use ratatui::crossterm::event::KeyCode::{
    self, Char, Down, End, Enter, F, Home, Left, PageDown, PageUp, Right, Up,
};

use super::actions::What;
use super::help;
use super::question::Question;
use super::state::{App, Effect, Mode, Step};
use crate::cli::columns::Order;
use crate::cli::rows::Shape;
use gcgroup_client::node::Group;

/// Row of the table of keys.
pub(super) struct Binding {
    pub(super) keys: &'static [KeyCode],
    /// Names of the keys in the help; empty: another row's has them.
    pub(super) names: &'static str,
    pub(super) help: &'static str,
    /// Key and name in the last line of the screen; empty: not there.
    pub(super) label: (&'static str, &'static str),
    pub(super) press: fn(&mut App) -> Effect,
}

/// Returns a row without help and label.
const fn key(keys: &'static [KeyCode], press: fn(&mut App) -> Effect) -> Binding {
    Binding {
        keys,
        names: "",
        help: "",
        label: ("", ""),
        press,
    }
}

impl Binding {
    /// Names keys in the help, those of following rows too, and says what they do.
    const fn help(self, names: &'static str, help: &'static str) -> Self {
        Self { names, help, ..self }
    }

    /// Shows a key in the last line of the screen.
    const fn label(self, key: &'static str, name: &'static str) -> Self {
        let label = (key, name);
        Self { label, ..self }
    }
}

/// Lowest priority.
const LOWEST: u64 = 15;

pub(super) const BINDINGS: &[Binding] = &[
    key(&[F(1), Char('h'), Char('?')], |app| {
        app.mode = Mode::Text(help(), 0);
        Effect::None
    })
    .help("F1 h ?", "show the keys")
    .label("F1", "Help"),
    key(&[Up, Char('p')], |app| go(app, app.cursor.saturating_sub(1)))
        .help("Up Down PgUp PgDn Home End", "select a row"),
    key(&[Down, Char('n')], |app| go(app, app.cursor + 1)),
    key(&[PageUp], |app| go(app, app.cursor.saturating_sub(app.page))),
    key(&[PageDown], |app| go(app, app.cursor.saturating_add(app.page))),
    key(&[Home], |app| go(app, 0)),
    key(&[End], |app| go(app, usize::MAX)),
    key(&[F(2), Char('C')], |app| app.ask(Question::Columns)).help("F2 C", "choose the columns"),
    key(&[F(3), Char('/')], |app| app.ask(Question::Search))
        .help("F3 /", "search: select the next row with a text")
        .label("F3", "Search"),
    key(&[F(4), Char('\\')], |app| app.ask(Question::Filter))
        .help("F4 \\", "filter: show only rows with a text; Esc ends it")
        .label("F4", "Filter"),
    key(&[F(5), Char('t')], |app| {
        app.selection.shape = match app.selection.shape {
            Shape::Tree => Shape::Processes,
            Shape::Table | Shape::Processes => Shape::Tree,
        };
        arranged(app)
    })
    .help("F5 t", "show groups and processes, or processes alone")
    .label("F5", "Tree"),
    key(&[Char('-'), Left], |app| {
        app.fold(true);
        Effect::None
    })
    .help("- + Left Right", "fold the group, unfold it"),
    key(&[Char('+'), Right], |app| {
        app.fold(false);
        Effect::None
    }),
    key(&[Char('*'), Enter], |app| {
        let groups = app.snapshot.groups.iter();
        app.selection.folded = match app.selection.folded.is_empty() {
            true => groups.map(|Group { path, .. }| path.clone()).collect(),
            false => Default::default(),
        };
        arranged(app)
    })
    .help("* Enter", "fold all groups, or unfold all"),
    key(&[F(6), Char('>'), Char('.')], |app| {
        app.selection.order = Some(app.selection.order.unwrap_or_default().next());
        arranged(app)
    })
    .help("F6 > . I", "sort by the next column, in the reverse order")
    .label("F6", "Sort"),
    key(&[Char('I')], |app| {
        let order = app.selection.order.get_or_insert_default();
        order.is_flipped = !order.is_flipped;
        arranged(app)
    }),
    key(&[Char('M')], |app| sorted(app, "memory")).help("M P N", "sort by memory, by GPU%, by pid and path"),
    key(&[Char('P')], |app| sorted(app, "usage")),
    key(&[Char('N')], |app| sorted(app, "pid")),
    key(&[Char('f'), Char('z')], |app| {
        app.act(|row| {
            let value = if row.whole().compute.freeze { "0" } else { "1" };
            What::Write("compute.freeze", value.to_owned())
        })
    })
    .help("f z", "freeze, or thaw what is frozen")
    .label("f", "Freeze"),
    key(&[F(7), Char(']')], |app| {
        app.act(|row| priority(row.whole().compute.priority.saturating_sub(1)))
    })
    .help("F7 ] F8 [", "raise the priority (a lower number), lower it")
    .label("F7", "Pri-"),
    key(&[F(8), Char('[')], |app| {
        app.act(|row| priority(LOWEST.min(row.whole().compute.priority + 1)))
    })
    .label("F8", "Pri+"),
    key(&[Char('r')], |app| app.ask(Question::Priority))
        .help("r l c", "set the priority, memory limit, GPU quota"),
    key(&[Char('l')], |app| app.ask(Question::Limit)).label("l", "Limit"),
    key(&[Char('c')], |app| app.ask(Question::Quota)),
    key(&[Char('s')], |app| {
        app.act(|row| {
            let value = if row.whole().suspend == Some(true) {
                "0"
            } else {
                "1"
            };
            What::Write("gcgroup.suspend", value.to_owned())
        })
    })
    .help("s", "suspend, or resume what is suspended"),
    key(&[Char('o')], |app| app.ask(Question::Reclaim))
        .help("o", "move memory out to the host (memory.reclaim)"),
    key(&[Char('e')], |app| app.act(|_| What::Explain))
        .help("e", "explain what bounds it and what it waits for")
        .label("e", "Why"),
    key(&[Char('m')], |app| app.ask(Question::Move))
        .help("m", "move the process into a group")
        .label("m", "Move"),
    key(&[F(9), Char('k')], |app| app.ask(Question::Kill))
        .help("F9 k", "send a signal to the process")
        .label("F9", "Kill"),
    key(&[Char(' ')], |app| app.step(Step::Pause)).help("Space", "recording: stop the time, or let it go on"),
    key(&[Char('(')], |app| app.step(Step::Previous))
        .help("( ) { }", "recording: a sample or a minute back or forward"),
    key(&[Char(')')], |app| app.step(Step::Next)),
    key(&[Char('{')], |app| app.step(Step::By(-60))),
    key(&[Char('}')], |app| app.step(Step::By(60))),
    key(&[Char('g')], |app| match app.replay {
        Some(_) => app.ask(Question::Time),
        None => app.step(Step::Pause),
    })
    .help("g", "recording: go to a time"),
    key(&[F(10), Char('q')], |_| Effect::Quit)
        .help("F10 q", "quit")
        .label("q", "Quit"),
];

fn go(app: &mut App, index: usize) -> Effect {
    app.go(index);
    Effect::None
}

fn arranged(app: &mut App) -> Effect {
    app.arrange();
    Effect::None
}

fn sorted(app: &mut App, column: &str) -> Effect {
    if let Ok(order) = Order::of_top(column) {
        app.selection.order = Some(order);
    }
    arranged(app)
}

fn priority(priority: u64) -> What {
    What::Write("compute.priority", priority.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_has_one_function() {
        let all: Vec<KeyCode> = BINDINGS
            .iter()
            .flat_map(|binding| binding.keys)
            .copied()
            .collect();
        for key in &all {
            assert_eq!(all.iter().filter(|other| *other == key).count(), 1, "{key:?}");
        }
    }

    #[test]
    fn columns_of_keys_exist() {
        for name in ["memory", "usage", "pid"] {
            assert!(Order::of_top(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn help_and_labels_fit_on_80_by_24() {
        let shown = BINDINGS.iter().filter(|binding| !binding.names.is_empty());
        assert!(shown.count() <= 22);
        let width: usize = BINDINGS
            .iter()
            .map(|binding| binding.label.0.len() + binding.label.1.len())
            .sum();
        assert!(width < 80, "{width}");
        assert!(
            BINDINGS
                .iter()
                .all(|binding| binding.names.len() <= 26 && binding.help.len() <= 50)
        );
    }
}
