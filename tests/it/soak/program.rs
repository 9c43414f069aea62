//! Programs that start and exit.

use support::{Governed, Mount, artifacts};

use super::GPUS;
use super::random::Random;

/// A running `gcgroup-load roam`.
pub(super) struct Program {
    pub(super) load: Governed,
    /// Whether the program runs until it is told to exit.
    pub(super) stays: bool,
}

impl Program {
    pub(super) fn start(mount: &Mount, random: &mut Random) -> Self {
        let stays = random.below(3) != 0;
        let rounds = if stays { 0 } else { 1 + random.below(500) };
        let mut command = mount.command(artifacts().load());
        command.args(["roam", "--pause-ms", "200", "--size", "512K"]);
        command.args(["--seed", &random.below(1 << 40).to_string()]);
        command.args(["--rounds", &rounds.to_string()]);
        command.args(["--device", &random.below(GPUS).to_string()]);
        let load = Governed::spawn(command);
        Self { load, stays }
    }
}
