//! Settings of the arbiter, in nanoseconds.

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
    /// Returns the interval of ticks while a process waits for others' work, in case the end of that work is
    /// not rung.
    pub fn tick(&self) -> u64 {
        (4 * self.window).clamp(500_000, 2_000_000)
    }
}

/// Returns `nsec` in microseconds, the unit of control blocks and of the configuration.
pub fn usec(nsec: u64) -> u32 {
    u32::try_from(nsec / 1000).unwrap_or(u32::MAX)
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            window: 500_000,
            linger: 1_000_000,
            cycle: 20_000_000,
            starvation: Some(200_000_000),
            patience: 250_000_000,
            watch: 10_000_000_000,
        }
    }
}
