//! `gcgroupfs top --replay`: shows a recording in place of the daemon's state.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::state::{App, Step};
use crate::cli::record::{Frame, Recording};
use gcgroup_client::node::{POINTS, Snapshot};

/// Recording, and the sample that is shown.
#[derive(Debug)]
pub(super) struct Replay {
    recording: Recording,
    /// Sequence number of the block of the sample.
    block: u64,
    /// Frames of the block.
    frames: Vec<Frame>,
    /// Index of the frame that is shown.
    index: usize,
    /// Key frame of the sample that is shown.
    state: Frame,
    /// A point in time that stands for the first sample of the recording, for rates.
    origin: (Instant, f64),
    /// When the sample came to be shown.
    shown: Instant,
    is_paused: bool,
}

impl Replay {
    /// Opens a recording at a time, seconds since 1970; without it, at its beginning.
    ///
    /// # Errors
    /// The file is no recording, or is empty.
    pub(super) fn open(path: &Path, at: Option<u64>) -> anyhow::Result<Self> {
        let name = path.display();
        let recording = Recording::open(path).with_context(|| format!("cannot open {name}"))?;
        let mut replay = Self {
            recording,
            block: 0,
            frames: Vec::new(),
            index: 0,
            state: Frame::default(),
            origin: (Instant::now(), 0.0),
            shown: Instant::now(),
            is_paused: false,
        };
        replay.seek(0)?;
        ensure!(!replay.frames.is_empty(), "{name} has no records");
        replay.origin.1 = replay.state.time;
        replay.seek(at.unwrap_or(0))?;
        Ok(replay)
    }

    /// Returns the sample that is shown, and up to [`POINTS`] samples of the same block before it, the oldest
    /// first.
    pub(super) fn history(&self) -> Vec<Snapshot> {
        let first = (self.index + 1).saturating_sub(POINTS);
        let mut snapshots = Vec::new();
        let mut state = Frame::default();
        for (index, frame) in self.frames.iter().enumerate().take(self.index + 1) {
            state.apply(frame.clone());
            if index >= first {
                snapshots.push(self.snapshot(&state));
            }
        }
        snapshots
    }

    /// Moves to another sample.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn step(&mut self, step: Step, app: &mut App) -> anyhow::Result<()> {
        let time = Duration::try_from_secs_f64(self.state.time).map_or(0, |time| time.as_secs());
        self.shown = Instant::now();
        match step {
            Step::Pause => self.is_paused = !self.is_paused,
            Step::Next => {
                if self.next()? {
                    app.update(Ok(self.snapshot(&self.state)));
                }
            }
            Step::Previous => {
                self.previous()?;
                app.reset(self.history());
            }
            Step::By(seconds) => return self.step(Step::To(time.saturating_add_signed(seconds)), app),
            Step::To(time) => {
                self.recording.refresh()?;
                self.seek(time)?;
                app.reset(self.history());
            }
        }
        app.replay = Some(self.clock());
        Ok(())
    }

    /// Shows the samples that were recorded in the time that has passed since the last call.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn play(&mut self, app: &mut App) -> anyhow::Result<()> {
        if !self.is_paused && self.shown.elapsed() >= app.delay {
            self.pass(app)?;
        }
        Ok(())
    }

    /// Shows the first sample that was recorded at least [`App::delay`] after this one. Returns whether there
    /// is one.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn pass(&mut self, app: &mut App) -> anyhow::Result<bool> {
        let until = self.state.time + app.delay.as_secs_f64();
        let mut has_passed = false;
        self.shown = Instant::now();
        while self.next()? {
            has_passed = true;
            app.update(Ok(self.snapshot(&self.state)));
            // Samples are a second apart, give or take what reading one takes; a pause of the recorder, or a
            // clock that was set back, is not waited for.
            if self.state.time + 0.5 >= until {
                break;
            }
        }
        app.replay = Some(self.clock());
        Ok(has_passed)
    }

    /// Returns the time of the sample in seconds since 1970, and whether the time stands still.
    pub(super) fn clock(&self) -> (u64, bool) {
        let time = Duration::try_from_secs_f64(self.state.time).unwrap_or_default();
        (time.as_secs(), self.is_paused)
    }

    fn snapshot(&self, frame: &Frame) -> Snapshot {
        let (origin, first) = self.origin;
        let since = Duration::try_from_secs_f64(frame.time - first).unwrap_or_default();
        frame.snapshot(origin.checked_add(since).unwrap_or(origin))
    }

    /// Goes to the last sample of a time or before; to the first if there is none.
    fn seek(&mut self, time: u64) -> anyhow::Result<()> {
        let Some(block) = self.recording.block_of(time) else {
            return Ok(());
        };
        if !self.enter(block, 0)? {
            return Ok(());
        }
        let until = Duration::from_secs(time.saturating_add(1)).as_secs_f64();
        let later = self.frames.iter().position(|frame| frame.time >= until);
        let index = later.unwrap_or(self.frames.len()).saturating_sub(1);
        self.enter(block, index)?;
        Ok(())
    }

    fn next(&mut self) -> anyhow::Result<bool> {
        if let Some(frame) = self.frames.get(self.index + 1) {
            self.state.apply(frame.clone());
            self.index += 1;
            return Ok(true);
        }
        // The recorder may go on: in the same block, or in the next one.
        self.recording.refresh()?;
        let (block, index) = (self.block, self.index + 1);
        let after = self.recording.blocks().find(|after| *after > block);
        if self.enter(block, index)? {
            return Ok(true);
        }
        after.map_or(Ok(false), |after| self.enter(after, 0))
    }

    fn previous(&mut self) -> anyhow::Result<()> {
        let before = self.recording.blocks().rev().find(|before| *before < self.block);
        match (self.index.checked_sub(1), before) {
            (Some(index), _) => self.enter(self.block, index)?,
            (None, Some(block)) => self.enter(block, usize::MAX)?,
            (None, None) => false,
        };
        Ok(())
    }

    /// Shows a sample of a block; the last if `index` is [`usize::MAX`]. Returns whether it is there.
    fn enter(&mut self, block: u64, index: usize) -> anyhow::Result<bool> {
        let mut frames = Vec::new();
        self.recording.for_each(block, |frame| frames.push(frame))?;
        let index = match index {
            usize::MAX => frames.len().saturating_sub(1),
            index => index,
        };
        if index >= frames.len() {
            return Ok(false);
        }
        let mut state = Frame::default();
        for frame in frames.iter().take(index + 1) {
            state.apply(frame.clone());
        }
        (self.block, self.frames, self.index, self.state) = (block, frames, index, state);
        Ok(true)
    }
}
