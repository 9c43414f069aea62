//! Processes that lie to the daemon, next to honest ones: `tests/programs/hostile_hook.rs` stores what it
//! likes in its usage block. What the honest ones get must be what they get without the liar.

mod basics;
mod floods;
mod gpu_time;
mod memory;
mod pressure;

use support::{Governed, Mount, program_for_all};

/// The user in whose name liars run.
pub(crate) const LIAR: u32 = 1234;

/// A liar: registered, without any GPU.
#[track_caller]
pub(crate) fn liar(mount: &Mount, wishes: &[&str]) -> Governed {
    liar_of(mount, LIAR, wishes)
}

/// The same in another user's name.
#[track_caller]
pub(crate) fn liar_of(mount: &Mount, uid: u32, wishes: &[&str]) -> Governed {
    let program = program_for_all(env!("CARGO_BIN_EXE_hostile_hook").as_ref(), mount.root());
    let mut command = mount.command_of(uid, &program);
    command.env_remove("LD_PRELOAD").args(wishes);
    let mut liar = Governed::spawn(command);
    liar.expect("ready");
    liar
}

/// Has it do something that must work.
#[track_caller]
pub(crate) fn tell(liar: &mut Governed, command: &str) {
    assert_eq!(liar.ask(command), "ok", "{command}");
}
