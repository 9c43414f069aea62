//! Keys: they are bound to functions, or type a line that answers a question.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::actions::What;
use super::keys::BINDINGS;
use super::question::Question;
use super::state::{App, Effect, Mode, Step};
use crate::cli::columns::of_top;
use crate::cli::report::now;
use gcgroupfs_sys::clock::parse_local_time;

impl App {
    /// Obeys a key.
    pub(super) fn key(&mut self, event: KeyEvent) -> Effect {
        let is_control = event.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && event.code == KeyCode::Char('c') {
            return Effect::Interrupt;
        }
        match &mut self.mode {
            Mode::Text(lines, first) => {
                let last = lines.len().saturating_sub(1);
                let moved = match event.code {
                    KeyCode::Up => first.saturating_sub(1),
                    KeyCode::Down => *first + 1,
                    KeyCode::PageUp => first.saturating_sub(self.page),
                    KeyCode::PageDown => *first + self.page,
                    _ => {
                        self.mode = Mode::Table;
                        return Effect::None;
                    }
                };
                *first = moved.min(last);
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
            Question::Columns => {
                let names = text.split(',').filter(|name| !name.is_empty());
                match names.map(|name| of_top(name.trim())).collect() {
                    Ok(columns) => self.columns = columns,
                    Err(error) => return self.complain(error),
                }
                return Effect::None;
            }
            _ if text.is_empty() => return Effect::None,
            Question::Time => {
                return match parse_local_time(&text, now()) {
                    Ok(time) => Effect::Replay(Step::To(time)),
                    Err(error) => self.complain(error),
                };
            }
            Question::Limit => What::Write("memory.limit", text),
            Question::Quota => What::Write("compute.max", text),
            Question::Reclaim => What::Write("memory.reclaim", text),
            Question::Priority => What::Write("compute.priority", text),
            Question::Move => What::Move(text),
            Question::Kill => What::Kill(text),
        };
        if self.selected().map(|row| &row.target) != self.asked.as_ref() {
            return self.complain("it is gone; nothing was done".to_owned());
        }
        self.act(|_| what)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::draw::{Style, draw};
    use super::*;
    use crate::cli::rows::{Selection, Shape};
    use gcgroup_client::node::fixture;

    fn app() -> App {
        let selection = Selection {
            order: None,
            shape: Shape::Tree,
            is_per_device: false,
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
        app.selected().map_or_else(String::new, |row| row.target.path())
    }

    fn what(effect: Effect) -> (String, What) {
        match effect {
            Effect::Act(action) => (action.target.path(), action.what),
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
    fn columns_are_chosen_and_refused_by_name() {
        let mut app = app();
        let names = |app: &App| app.columns.iter().map(|column| column.name).collect::<Vec<_>>();
        press(&mut app, KeyCode::F(2));
        enter(&mut app, "pid, quota,name");
        assert_eq!(names(&app), ["pid", "quota", "name"]);
        press(&mut app, KeyCode::F(2));
        enter(&mut app, "x");
        assert!(app.message.take().is_some_and(|message| message.is_error));
        assert_eq!(names(&app), ["pid", "quota", "name"], "they stay");
    }

    #[test]
    fn text_scrolls_and_another_key_returns() {
        let mut app = app();
        app.mode = Mode::Text(vec!["a".into(), "b".into()], 0);
        for (code, first) in [(KeyCode::Down, 1), (KeyCode::PageDown, 1), (KeyCode::Up, 0)] {
            press(&mut app, code);
            assert_eq!(app.mode, Mode::Text(vec!["a".into(), "b".into()], first));
        }
        press(&mut app, KeyCode::Esc);
        assert_eq!(app.mode, Mode::Table);
    }

    #[test]
    fn all_keys_are_explained_on_a_small_screen() {
        let mut app = app();
        press(&mut app, KeyCode::F(1));
        let style = Style::of(|_| None);
        let mut terminal = Terminal::new(TestBackend::new(40, 8)).unwrap();
        let mut seen = String::new();
        for _ in 0..100 {
            terminal.draw(|frame| draw(frame, &mut app, style)).unwrap();
            let cells = terminal.backend().buffer().content();
            let words = cells.iter().map(|cell| cell.symbol()).collect::<String>();
            seen += &words.split_whitespace().collect::<Vec<_>>().join(" ");
            press(&mut app, KeyCode::Down);
        }
        for (names, help) in super::super::keys() {
            let last = help.split_whitespace().last().unwrap();
            assert!(seen.contains(names) && seen.contains(last), "{names} {help}");
        }
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
        press(&mut app, KeyCode::Char('c'));
        assert_eq!(what(enter(&mut app, "50%")), write("compute.max", "50%"));
        press(&mut app, KeyCode::Char('o'));
        assert_eq!(what(enter(&mut app, "max")), write("memory.reclaim", "max"));
        assert_eq!(
            what(press(&mut app, KeyCode::Char('s'))),
            write("gcgroup.suspend", "1")
        );
        assert_eq!(what(press(&mut app, KeyCode::Char('e'))).1, What::Explain);
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
