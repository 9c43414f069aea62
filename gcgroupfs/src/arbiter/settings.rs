//! Settings of the arbiter: those of the configuration, in nanoseconds.

use crate::config::Compute;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    pub window: u64,
    pub linger: u64,
    pub cycle: u64,
    /// `None`: no process gets an extra turn.
    pub starvation: Option<u64>,
    pub patience: u64,
    pub watch: u64,
}

impl Settings {
    pub fn new(compute: &Compute) -> Self {
        let nsec = |usec: u32| u64::from(usec) * 1000;
        Self {
            window: nsec(compute.window_usec.get()),
            linger: nsec(compute.linger_usec.get()),
            cycle: nsec(compute.cycle_usec.get()),
            starvation: Some(nsec(compute.starvation_usec.get())).filter(|interval| *interval > 0),
            patience: nsec(compute.patience_usec.get()),
            watch: nsec(compute.watch_usec.get()),
        }
    }

    /// Returns the interval of ticks while a process waits for others' work, in case the end of that work is
    /// not rung.
    pub fn tick(&self) -> u64 {
        (4 * self.window).clamp(500_000, 2_000_000)
    }
}

/// Returns `nsec` in microseconds, the unit of control blocks.
pub fn usec(nsec: u64) -> u32 {
    u32::try_from(nsec / 1000).unwrap_or(u32::MAX)
}

impl Default for Settings {
    fn default() -> Self {
        Self::new(&Compute::default())
    }
}
