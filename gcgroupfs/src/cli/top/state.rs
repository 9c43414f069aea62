//! State of the screen, and how keys and snapshots change it.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::actions::{Action, What};
use super::activity::Activities;
use super::keys::BINDINGS;
use super::replay::Step;
use super::rows::{Key, Row, Selection};
use crate::cli::record::now;
use crate::cli::view::Snapshot;
use gcgroupfs_sys::clock::parse_local_time;

#[derive(Debug)]
pub(super) struct App {
    pub(super) snapshot: Snapshot,
    pub(super) activities: Activities,
    pub(super) selection: Selection,
    pub(super) delay: Duration,
    pub(super) rows: Vec<Row>,
    /// Index of the selected row.
    pub(super) cursor: usize,
    /// Number of rows that the screen shows; set when it is drawn.
    pub(super) page: usize,
    pub(super) mode: Mode,
    /// The row that the question of the prompt is about.
    asked: Option<Key>,
    /// Result of the last action.
    pub(super) message: Option<Message>,
    /// Why the snapshot is not new.
    pub(super) outage: Option<String>,
    /// Time of a recording that is shown, in seconds since 1970, and whether it stands still.
    pub(super) replay: Option<(u64, bool)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) text: String,
    pub(super) is_error: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Table,
    Help,
    /// A line is typed.
    Prompt(Question, String),
}

/// Question that a typed line answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Filter,
    Search,
    Limit,
    Priority,
    Move,
    Kill,
    Time,
}

impl Question {
    /// Returns the question about a row.
    pub(super) fn text(self, row: Option<&Row>) -> String {
        let path = row.map_or_else(String::new, |row| row.key.path());
        match self {
            Self::Filter => "Filter (name, pid, user or group): ".to_owned(),
            Self::Search => "Search (name, pid, user or group): ".to_owned(),
            Self::Limit => format!("Memory limit of {path} (as 8G, or max): "),
            Self::Priority => format!("Priority of {path} (0 is highest, 15 lowest): "),
            Self::Move => format!("Move {path} to the group (/ is the root): "),
            Self::Kill => format!("Signal for {path} (TERM, KILL, ...): "),
            Self::Time => "Go to (HH:MM[:SS], or with a date as 2026-01-31 10:00): ".to_owned(),
        }
    }
}

/// Consequence of a key outside of this module.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Quit,
    Interrupt,
    Act(Action),
    Replay(Step),
}

impl App {
    /// Shows the last snapshot. The others are its history, the oldest first.
    pub(super) fn new(history: Vec<Snapshot>, selection: Selection, delay: Duration) -> Self {
        let mut app = Self {
            snapshot: Snapshot::empty(),
            activities: Activities::default(),
            selection,
            delay,
            rows: Vec::new(),
            cursor: 0,
            page: 10,
            mode: Mode::Table,
            asked: None,
            message: None,
            outage: None,
            replay: None,
        };
        app.reset(history);
        app
    }

    /// Takes a snapshot that was read just now, or why none was.
    pub(super) fn update(&mut self, read: anyhow::Result<Snapshot>) {
        match read {
            Ok(snapshot) => {
                self.activities.update(&snapshot);
                (self.snapshot, self.outage) = (snapshot, None);
                self.arrange();
            }
            Err(error) => self.outage = Some(format!("{error:#}")),
        }
    }

    /// Shows the last snapshot. The others are its history, the oldest first.
    pub(super) fn reset(&mut self, history: Vec<Snapshot>) {
        self.activities = Activities::default();
        for snapshot in history {
            self.activities.update(&snapshot);
            self.snapshot = snapshot;
        }
        self.arrange();
    }

    /// Makes the rows again. The selected process or group stays selected if it is there.
    pub(super) fn arrange(&mut self) {
        let selected = self.selected().map(|row| row.key.clone());
        self.rows = self.selection.rows(&self.snapshot, &self.activities);
        let found = selected.and_then(|key| self.rows.iter().position(|row| row.key == key));
        self.go(found.unwrap_or(self.cursor));
    }

    pub(super) fn selected(&self) -> Option<&Row> {
        self.rows.get(self.cursor)
    }

    /// Selects the row of this index, or the last.
    pub(super) fn go(&mut self, index: usize) {
        self.cursor = index.min(self.rows.len().saturating_sub(1));
    }

    pub(super) fn key(&mut self, event: KeyEvent) -> Effect {
        let is_control = event.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && event.code == KeyCode::Char('c') {
            return Effect::Interrupt;
        }
        match &mut self.mode {
            Mode::Help => {
                self.mode = Mode::Table;
                Effect::None
            }
            Mode::Prompt(question, text) => {
                let question = *question;
                match event.code {
                    KeyCode::Char('u') if is_control => text.clear(),
                    KeyCode::Char(typed) if !is_control => text.push(typed),
                    KeyCode::Backspace => drop(text.pop()),
                    KeyCode::Enter => return self.answer(),
                    KeyCode::Esc => {
                        self.mode = Mode::Table;
                        if question == Question::Filter {
                            self.selection.filter.clear();
                            self.arrange();
                        }
                        return Effect::None;
                    }
                    _ => {}
                }
                self.typed();
                Effect::None
            }
            Mode::Table => {
                self.message = None;
                let code = match event.code {
                    KeyCode::Char('l') if is_control => return Effect::None,
                    code => code,
                };
                let binding = BINDINGS.iter().find(|binding| binding.keys.contains(&code));
                binding.map_or(Effect::None, |binding| (binding.press)(self))
            }
        }
    }

    pub(super) fn ask(&mut self, question: Question) -> Effect {
        let needs_row = !matches!(question, Question::Filter | Question::Search | Question::Time);
        if needs_row && (self.selected().is_none() || self.is_refused_in_replay()) {
            return Effect::None;
        }
        let text = match question {
            Question::Filter => self.selection.filter.clone(),
            Question::Kill => "TERM".to_owned(),
            _ => String::new(),
        };
        self.asked = self.selected().map(|row| row.key.clone());
        self.mode = Mode::Prompt(question, text);
        Effect::None
    }

    /// Follows a line while it is typed.
    fn typed(&mut self) {
        let Mode::Prompt(question, text) = &self.mode else {
            return;
        };
        let text = text.to_lowercase();
        match question {
            Question::Filter => {
                self.selection.filter = text;
                self.arrange();
            }
            Question::Search if !text.is_empty() => {
                let after = self
                    .rows
                    .iter()
                    .enumerate()
                    .cycle()
                    .skip(self.cursor)
                    .take(self.rows.len());
                let found = after
                    .into_iter()
                    .find(|(_, row)| row.matches(&text))
                    .map(|(index, _)| index);
                self.go(found.unwrap_or(self.cursor));
            }
            _ => {}
        }
    }

    fn answer(&mut self) -> Effect {
        let Mode::Prompt(question, text) = std::mem::replace(&mut self.mode, Mode::Table) else {
            return Effect::None;
        };
        let text = text.trim().to_owned();
        let what = match question {
            Question::Filter | Question::Search => return Effect::None,
            _ if text.is_empty() => return Effect::None,
            Question::Time => {
                return match parse_local_time(&text, now()) {
                    Ok(time) => Effect::Replay(Step::To(time)),
                    Err(error) => self.complain(error),
                };
            }
            Question::Limit => What::Write("memory.limit", text),
            Question::Priority => What::Write("compute.priority", text),
            Question::Move => What::Move(text),
            Question::Kill => What::Kill(text),
        };
        if self.selected().map(|row| &row.key) != self.asked.as_ref() {
            return self.complain("it is gone; nothing was done".to_owned());
        }
        self.act(|_| what)
    }

    /// Requests an action on the selected row.
    pub(super) fn act(&mut self, what: impl FnOnce(&Row) -> What) -> Effect {
        if self.is_refused_in_replay() {
            return Effect::None;
        }
        let row = self.selected();
        row.map_or(Effect::None, |row| Effect::Act(Action::of(row, what(row))))
    }

    /// Requests a movement in the recording.
    pub(super) fn step(&mut self, step: Step) -> Effect {
        match self.replay {
            Some(_) => Effect::Replay(step),
            None => self.complain("this is no recording (--replay)".to_owned()),
        }
    }

    /// Returns whether a recording is shown, and then says why there are no actions.
    fn is_refused_in_replay(&mut self) -> bool {
        if self.replay.is_some() {
            self.complain("a recording cannot be changed".to_owned());
        }
        self.replay.is_some()
    }

    fn complain(&mut self, text: String) -> Effect {
        self.message = Some(Message { text, is_error: true });
        Effect::None
    }

    /// Shows or hides what is in the selected group, or in the group of the selected process.
    pub(super) fn fold(&mut self, is_folded: bool) {
        let Some(row) = self.selected() else { return };
        let path = match &row.key {
            Key::Group(path) => Some(path.clone()),
            Key::Process(_) if self.selection.is_tree => {
                let above = self.rows.get(..self.cursor).unwrap_or_default().iter().rev();
                let mut groups = above.filter(|above| above.is_group() && above.depth < row.depth);
                groups.next().map(|group| group.key.path())
            }
            Key::Process(_) => None,
        };
        let Some(path) = path else { return };
        if is_folded {
            self.selection.folded.insert(path.clone());
        } else {
            self.selection.folded.remove(&path);
        }
        self.arrange();
        let group = Key::Group(path);
        let found = self.rows.iter().position(|row| row.key == group);
        self.go(found.unwrap_or(self.cursor));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cli::top::columns::Sorting;
    use crate::cli::view::fixture;

    fn app() -> App {
        let selection = Selection {
            sorting: Sorting::default(),
            is_tree: true,
            filter: String::new(),
            folded: BTreeSet::new(),
        };
        App::new(vec![fixture::snapshot()], selection, Duration::from_secs(1))
    }

    fn press(app: &mut App, code: KeyCode) -> Effect {
        app.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn enter(app: &mut App, text: &str) -> Effect {
        for typed in text.chars() {
            assert_eq!(press(app, KeyCode::Char(typed)), Effect::None);
        }
        press(app, KeyCode::Enter)
    }

    fn selected(app: &App) -> String {
        app.selected().map_or_else(String::new, |row| row.key.path())
    }

    fn what(effect: Effect) -> (String, What) {
        match effect {
            Effect::Act(action) => (action.key.path(), action.what),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn keys_move_fold_and_quit() {
        let mut app = app();
        assert_eq!(selected(&app), "101");
        press(&mut app, KeyCode::End);
        assert_eq!(selected(&app), "c");
        press(&mut app, KeyCode::Up);
        assert_eq!(selected(&app), "100");
        press(&mut app, KeyCode::Char('-'));
        assert_eq!((selected(&app), app.rows.len()), ("a/b".to_owned(), 4));
        press(&mut app, KeyCode::Char('+'));
        assert_eq!(app.rows.len(), 6);
        press(&mut app, KeyCode::F(5));
        assert_eq!(app.rows.len(), 3, "processes alone");
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(app.key(interrupt), Effect::Interrupt);
        assert_eq!(press(&mut app, KeyCode::F(10)), Effect::Quit);
    }

    #[test]
    fn answer_about_a_row_that_is_gone_has_no_effect() {
        let mut app = app();
        press(&mut app, KeyCode::Char('/'));
        enter(&mut app, "100");
        press(&mut app, KeyCode::Char('k'));
        let mut snapshot = fixture::snapshot();
        snapshot.processes.retain(|process| process.pid != 100);
        app.update(Ok(snapshot));
        assert_eq!(press(&mut app, KeyCode::Enter), Effect::None);
        assert!(app.message.as_ref().is_some_and(|message| message.is_error));
    }

    #[test]
    fn selection_follows_its_process() {
        let mut app = app();
        press(&mut app, KeyCode::Char('/'));
        enter(&mut app, "100");
        assert_eq!(selected(&app), "100");
        let mut snapshot = fixture::snapshot();
        snapshot.processes.retain(|process| process.pid != 7);
        app.update(Ok(snapshot));
        assert_eq!(selected(&app), "100");
        app.update(Err(anyhow::anyhow!("no daemon")));
        assert_eq!(
            (selected(&app), app.outage.as_deref()),
            ("100".to_owned(), Some("no daemon"))
        );
        app.update(Ok(fixture::snapshot()));
        assert_eq!((selected(&app), app.outage.as_deref()), ("100".to_owned(), None));
    }

    #[test]
    fn recording_moves_in_time_and_has_no_actions() {
        let mut app = app();
        assert_eq!(press(&mut app, KeyCode::Char(' ')), Effect::None);
        assert!(app.message.is_some(), "the state of the daemon has no other time");
        app.replay = Some((0, false));
        for (key, step) in [
            (' ', Step::Pause),
            (')', Step::Next),
            ('(', Step::Previous),
            ('}', Step::By(60)),
            ('{', Step::By(-60)),
        ] {
            assert_eq!(press(&mut app, KeyCode::Char(key)), Effect::Replay(step));
        }
        for key in ['f', 'l', 'k', 'm', 'r', ']'] {
            assert_eq!(press(&mut app, KeyCode::Char(key)), Effect::None);
            assert!(
                app.message.take().is_some_and(|message| message.is_error),
                "{key}"
            );
            assert_eq!(app.mode, Mode::Table);
        }
        press(&mut app, KeyCode::Char('g'));
        assert_eq!(enter(&mut app, "77"), Effect::Replay(Step::To(77)));
        press(&mut app, KeyCode::Char('g'));
        assert_eq!(enter(&mut app, "tomorrow"), Effect::None);
        assert!(app.message.is_some_and(|message| message.is_error));
    }

    #[test]
    fn filter_applies_while_typed_and_ends_with_escape() {
        let mut app = app();
        press(&mut app, KeyCode::F(4));
        press(&mut app, KeyCode::Char('7'));
        assert_eq!(app.rows.len(), 3);
        press(&mut app, KeyCode::Enter);
        assert_eq!((app.rows.len(), &app.mode), (3, &Mode::Table));
        press(&mut app, KeyCode::F(4));
        press(&mut app, KeyCode::Esc);
        assert_eq!(app.rows.len(), 6);
    }

    #[test]
    fn actions_name_the_selected_row() {
        let mut app = app();
        let write = |file, value: &str| ("101".to_owned(), What::Write(file, value.to_owned()));
        assert_eq!(
            what(press(&mut app, KeyCode::Char('f'))),
            write("compute.freeze", "1")
        );
        assert_eq!(
            what(press(&mut app, KeyCode::F(7))),
            write("compute.priority", "7")
        );
        assert_eq!(
            what(press(&mut app, KeyCode::F(8))),
            write("compute.priority", "9")
        );
        press(&mut app, KeyCode::Char('l'));
        assert_eq!(what(enter(&mut app, "8G")), write("memory.limit", "8G"));
        press(&mut app, KeyCode::Char('m'));
        assert_eq!(what(enter(&mut app, "/c")).1, What::Move("/c".to_owned()));
        press(&mut app, KeyCode::F(9));
        assert_eq!(
            what(press(&mut app, KeyCode::Enter)).1,
            What::Kill("TERM".to_owned())
        );
        press(&mut app, KeyCode::Char('l'));
        assert_eq!(
            press(&mut app, KeyCode::Enter),
            Effect::None,
            "an empty line does nothing"
        );
    }
}
