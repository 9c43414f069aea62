//! Governed programs for AArch64, run by qemu-user on any machine.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use crate::artifacts::{artifacts, emulated_tree};

/// `e_machine` of AArch64 in an ELF header, and its position.
const EM_AARCH64: u16 = 183;
const MACHINE: usize = 18;

/// Debian's C library and compiler for AArch64 (gcc-aarch64-linux-gnu).
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-gcc";

/// Bytes of addresses that a program has: the emulator is slow at large mappings, of which the simulated
/// driver makes several.
const ADDRESSES: &str = "0x1000000000";

/// Returns the compiler for test programs that have no own.
pub(crate) fn compiler() -> &'static str {
    emulated_tree().map_or("gcc", |_| COMPILER)
}

/// Returns a command that runs the program with the simulated driver and a preloaded library.
pub(crate) fn command(program: &Path, preload: Option<&Path>) -> Command {
    if emulated_tree().is_none() || !is_aarch64(program) {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", artifacts().simgpu_of_daemon());
        return command;
    }
    // The emulator is a program of this machine, so these libraries must not be in its own environment.
    let mut set = OsString::from("LD_LIBRARY_PATH=");
    set.push(artifacts().simgpu());
    if let Some(library) = preload {
        set.push(",LD_PRELOAD=");
        set.push(library);
    }
    let mut command = Command::new("qemu-aarch64");
    command.args(["-L", LIBRARIES, "-R", ADDRESSES]).arg(program);
    command.env("QEMU_SET_ENV", set);
    command
}

/// Adds the preloaded library of a program for this machine, in place of one that the daemon is given.
pub(crate) fn preload(command: &mut Command, program: &Path, library: Option<&Path>) {
    let is_emulated = emulated_tree().is_some() && is_aarch64(program);
    if let Some(library) = library.filter(|_| !is_emulated) {
        command.env("LD_PRELOAD", library);
    }
}

/// Returns whether a file is a program for AArch64.
fn is_aarch64(program: &Path) -> bool {
    let mut header = [0; MACHINE + 2];
    let is_read = File::open(program).and_then(|mut file| file.read_exact(&mut header));
    is_read.is_ok() && header.starts_with(b"\x7fELF") && header.ends_with(&EM_AARCH64.to_le_bytes())
}
