//! Tests processes that lie to the daemon, beside honest ones: `tests/programs/hostile_hook.rs` stores
//! arbitrary values in its usage block. Honest processes must get what they would get without the liar.

mod basics;
mod floods;
mod gpu_time;
mod memory;
mod pressure;

use support::{Governed, Mount, program_for_all};

/// Uid of the liars.
pub(crate) const LIAR: u32 = 1234;

/// Starts a liar: a registered process that uses no GPU.
#[track_caller]
pub(crate) fn liar(mount: &Mount, options: &[&str]) -> Governed {
    liar_of(mount, LIAR, options)
}

/// Starts a liar as user `uid`.
#[track_caller]
pub(crate) fn liar_of(mount: &Mount, uid: u32, options: &[&str]) -> Governed {
    let program = program_for_all(env!("CARGO_BIN_EXE_hostile_hook").as_ref(), mount.root());
    let mut command = mount.command_of(uid, &program);
    command.env_remove("LD_PRELOAD").args(options);
    let mut liar = Governed::spawn(command);
    liar.expect("ready");
    liar
}

/// Sends a command to the liar that must succeed.
#[track_caller]
pub(crate) fn tell(liar: &mut Governed, command: &str) {
    assert_eq!(liar.ask(command), "ok", "{command}");
}
