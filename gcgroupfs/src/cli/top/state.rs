//! State of the screen, and how snapshots and requests change it.

use std::rc::Rc;
use std::time::Duration;

use super::actions::{Action, What};
use super::question::Question;
use crate::cli::columns::Column;
use crate::cli::row::Row;
use crate::cli::rows::{Selection, Shape};
use gcgroup_client::node::{Activities, Snapshot, Target};

#[derive(Debug)]
pub(super) struct App {
    pub(super) snapshot: Rc<Snapshot>,
    pub(super) activities: Activities,
    pub(super) selection: Selection,
    /// The chosen columns; empty: those of `top`.
    pub(super) columns: Vec<&'static Column>,
    pub(super) delay: Duration,
    pub(super) rows: Vec<Row>,
    /// Index of the selected row.
    pub(super) cursor: usize,
    /// Number of rows that the screen shows; set when it is drawn.
    pub(super) page: usize,
    pub(super) mode: Mode,
    /// The row that the question of the prompt is about.
    pub(super) asked: Option<Target>,
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
    /// A text, and the first line of it on the screen.
    Text(Vec<String>, usize),
    /// A line is typed.
    Prompt(Question, String),
}

/// Consequence of a key outside of the screen.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Quit,
    Interrupt,
    Act(Action),
    Replay(Step),
}

/// Movement in a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Stops the time, or lets it go on.
    Pause,
    /// To the sample after this one, or before it.
    Next,
    Previous,
    /// Forward or back by seconds.
    By(i64),
    /// To the last sample at a time (seconds since 1970) or before.
    To(u64),
}

impl App {
    /// Shows the last snapshot. The others are its history, the oldest first.
    pub(super) fn new(history: Vec<Snapshot>, selection: Selection, delay: Duration) -> Self {
        let mut app = Self {
            snapshot: Rc::new(Snapshot::empty()),
            activities: Activities::default(),
            selection,
            columns: Vec::new(),
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
                (self.snapshot, self.outage) = (Rc::new(snapshot), None);
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
            self.snapshot = Rc::new(snapshot);
        }
        self.arrange();
    }

    /// Makes the rows again. The selected process or group stays selected if it is there.
    pub(super) fn arrange(&mut self) {
        let selected = self.selected().map(|row| row.target.clone());
        self.rows = self.selection.rows(&self.snapshot, &self.activities);
        let found = selected.and_then(|target| self.rows.iter().position(|row| row.target == target));
        self.go(found.unwrap_or(self.cursor));
    }

    pub(super) fn selected(&self) -> Option<&Row> {
        self.rows.get(self.cursor)
    }

    /// Selects the row of this index, or the last.
    pub(super) fn go(&mut self, index: usize) {
        self.cursor = index.min(self.rows.len().saturating_sub(1));
    }

    pub(super) fn ask(&mut self, question: Question) -> Effect {
        let needs_row = !matches!(
            question,
            Question::Filter | Question::Search | Question::Time | Question::Columns
        );
        if needs_row && (self.selected().is_none() || self.is_refused_in_replay()) {
            return Effect::None;
        }
        let text = match question {
            Question::Filter => self.selection.filter.clone(),
            Question::Kill => "TERM".to_owned(),
            Question::Columns => {
                let names: Vec<&str> = self.columns.iter().map(|column| column.name).collect();
                names.join(",")
            }
            _ => String::new(),
        };
        self.asked = self.selected().map(|row| row.target.clone());
        self.mode = Mode::Prompt(question, text);
        Effect::None
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

    pub(super) fn complain(&mut self, text: String) -> Effect {
        self.message = Some(Message { text, is_error: true });
        Effect::None
    }

    /// Shows or hides what is in the selected group, or in the group of the selected process.
    pub(super) fn fold(&mut self, is_folded: bool) {
        let Some(row) = self.selected() else { return };
        let path = match &row.target {
            Target::Group(path) => Some(path.clone()),
            Target::Process(_) if self.selection.shape == Shape::Tree => {
                let above = self.rows.get(..self.cursor).unwrap_or_default().iter().rev();
                let mut groups = above.filter(|above| above.is_group() && above.depth < row.depth);
                groups.next().map(|group| group.target.path())
            }
            Target::Process(_) => None,
        };
        let Some(path) = path else { return };
        if is_folded {
            self.selection.folded.insert(path.clone());
        } else {
            self.selection.folded.remove(&path);
        }
        self.arrange();
        let group = Target::Group(path);
        let found = self.rows.iter().position(|row| row.target == group);
        self.go(found.unwrap_or(self.cursor));
    }
}
