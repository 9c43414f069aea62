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

/// Lowest priority.
const LOWEST: u64 = 15;

pub(super) const BINDINGS: &[Binding] = &[
    Binding {
        keys: &[F(1), Char('h'), Char('?')],
        names: "F1 h ?",
        help: "show the keys",
        label: ("F1", "Help"),
        press: |app| {
            app.mode = Mode::Text(help(), 0);
            Effect::None
        },
    },
    Binding {
        keys: &[Up, Char('p')],
        names: "Up Down PgUp PgDn Home End",
        help: "select a row",
        label: ("", ""),
        press: |app| go(app, app.cursor.saturating_sub(1)),
    },
    Binding {
        keys: &[Down, Char('n')],
        names: "",
        help: "",
        label: ("", ""),
        press: |app| go(app, app.cursor + 1),
    },
    Binding {
        keys: &[PageUp],
        names: "",
        help: "",
        label: ("", ""),
        press: |app| go(app, app.cursor.saturating_sub(app.page)),
    },
    Binding {
        keys: &[PageDown],
        names: "",
        help: "",
        label: ("", ""),
        press: |app| go(app, app.cursor.saturating_add(app.page)),
    },
    Binding {
        keys: &[Home],
        names: "",
        help: "",
        label: ("", ""),
        press: |app| go(app, 0),
    },
    Binding {
        keys: &[End],
        names: "",
        help: "",
        label: ("", ""),
        press: |app| go(app, usize::MAX),
    },
    Binding {
        keys: &[F(2), Char('C')],
        names: "F2 C",
        help: "choose the columns",
        label: ("", ""),
        press: |app| app.ask(Question::Columns),
    },
    Binding {
        keys: &[F(3), Char('/')],
        names: "F3 /",
        help: "search: select the next row with a text",
        label: ("F3", "Search"),
        press: |app| app.ask(Question::Search),
    },
    Binding {
        keys: &[F(4), Char('\\')],
        names: "F4 \\",
        help: "filter: show only rows with a text; Esc ends it",
        label: ("F4", "Filter"),
        press: |app| app.ask(Question::Filter),
    },
    Binding {
        keys: &[F(5), Char('t')],
        names: "F5 t",
        help: "show groups and processes, or processes alone",
        label: ("F5", "Tree"),
        press: |app| {
            app.selection.shape = match app.selection.shape {
                Shape::Tree => Shape::Processes,
                Shape::Table | Shape::Processes => Shape::Tree,
            };
            arranged(app)
        },
    },
    Binding {
        keys: &[Char('-'), Left],
        names: "- + Left Right",
        help: "fold the group, unfold it",
        label: ("", ""),
        press: |app| {
            app.fold(true);
            Effect::None
        },
    },
    Binding {
        keys: &[Char('+'), Right],
        names: "",
        help: "",
        label: ("", ""),
        press: |app| {
            app.fold(false);
            Effect::None
        },
    },
    Binding {
        keys: &[Char('*'), Enter],
        names: "* Enter",
        help: "fold all groups, or unfold all",
        label: ("", ""),
        press: |app| {
            let groups = app.snapshot.groups.iter();
            app.selection.folded = match app.selection.folded.is_empty() {
                true => groups.map(|Group { path, .. }| path.clone()).collect(),
                false => Default::default(),
            };
            arranged(app)
        },
    },
    Binding {
        keys: &[F(6), Char('>'), Char('.')],
        names: "F6 > . I",
        help: "sort by the next column, in the reverse order",
        label: ("F6", "Sort"),
        press: |app| {
            app.selection.order = Some(app.selection.order.unwrap_or_default().next());
            arranged(app)
        },
    },
    Binding {
        keys: &[Char('I')],
        names: "",
        help: "",
        label: ("", ""),
        press: |app| {
            let order = app.selection.order.get_or_insert_default();
            order.is_flipped = !order.is_flipped;
            arranged(app)
        },
    },
    Binding {
        keys: &[Char('M')],
        names: "M P N",
        help: "sort by memory, by GPU%, by pid and path",
        label: ("", ""),
        press: |app| sorted(app, "memory"),
    },
    Binding {
        keys: &[Char('P')],
        names: "",
        help: "",
        label: ("", ""),
        press: |app| sorted(app, "usage"),
    },
    Binding {
        keys: &[Char('N')],
        names: "",
        help: "",
        label: ("", ""),
        press: |app| sorted(app, "pid"),
    },
    Binding {
        keys: &[Char('f'), Char('z')],
        names: "f z",
        help: "freeze, or thaw what is frozen",
        label: ("f", "Freeze"),
        press: |app| {
            app.act(|row| {
                let value = if row.whole().compute.freeze { "0" } else { "1" };
                What::Write("compute.freeze", value.to_owned())
            })
        },
    },
    Binding {
        keys: &[F(7), Char(']')],
        names: "F7 ] F8 [",
        help: "raise the priority (a lower number), lower it",
        label: ("F7", "Pri-"),
        press: |app| app.act(|row| priority(row.whole().compute.priority.saturating_sub(1))),
    },
    Binding {
        keys: &[F(8), Char('[')],
        names: "",
        help: "",
        label: ("F8", "Pri+"),
        press: |app| app.act(|row| priority(LOWEST.min(row.whole().compute.priority + 1))),
    },
    Binding {
        keys: &[Char('r')],
        names: "r l c",
        help: "set the priority, memory limit, GPU quota",
        label: ("", ""),
        press: |app| app.ask(Question::Priority),
    },
    Binding {
        keys: &[Char('l')],
        names: "",
        help: "",
        label: ("l", "Limit"),
        press: |app| app.ask(Question::Limit),
    },
    Binding {
        keys: &[Char('c')],
        names: "",
        help: "",
        label: ("", ""),
        press: |app| app.ask(Question::Quota),
    },
    Binding {
        keys: &[Char('s')],
        names: "s",
        help: "suspend, or resume what is suspended",
        label: ("", ""),
        press: |app| {
            app.act(|row| {
                let value = if row.whole().suspend == Some(true) {
                    "0"
                } else {
                    "1"
                };
                What::Write("gcgroup.suspend", value.to_owned())
            })
        },
    },
    Binding {
        keys: &[Char('o')],
        names: "o",
        help: "move memory out to the host (memory.reclaim)",
        label: ("", ""),
        press: |app| app.ask(Question::Reclaim),
    },
    Binding {
        keys: &[Char('e')],
        names: "e",
        help: "explain what bounds it and what it waits for",
        label: ("e", "Why"),
        press: |app| app.act(|_| What::Explain),
    },
    Binding {
        keys: &[Char('m')],
        names: "m",
        help: "move the process into a group",
        label: ("m", "Move"),
        press: |app| app.ask(Question::Move),
    },
    Binding {
        keys: &[F(9), Char('k')],
        names: "F9 k",
        help: "send a signal to the process",
        label: ("F9", "Kill"),
        press: |app| app.ask(Question::Kill),
    },
    Binding {
        keys: &[Char(' ')],
        names: "Space",
        help: "recording: stop the time, or let it go on",
        label: ("", ""),
        press: |app| app.step(Step::Pause),
    },
    Binding {
        keys: &[Char('(')],
        names: "( ) { }",
        help: "recording: a sample or a minute back or forward",
        label: ("", ""),
        press: |app| app.step(Step::Previous),
    },
    Binding {
        keys: &[Char(')')],
        names: "",
        help: "",
        label: ("", ""),
        press: |app| app.step(Step::Next),
    },
    Binding {
        keys: &[Char('{')],
        names: "",
        help: "",
        label: ("", ""),
        press: |app| app.step(Step::By(-60)),
    },
    Binding {
        keys: &[Char('}')],
        names: "",
        help: "",
        label: ("", ""),
        press: |app| app.step(Step::By(60)),
    },
    Binding {
        keys: &[Char('g')],
        names: "g",
        help: "recording: go to a time",
        label: ("", ""),
        press: |app| match app.replay {
            Some(_) => app.ask(Question::Time),
            None => app.step(Step::Pause),
        },
    },
    Binding {
        keys: &[F(10), Char('q')],
        names: "F10 q",
        help: "quit",
        label: ("q", "Quit"),
        press: |_| Effect::Quit,
    },
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
