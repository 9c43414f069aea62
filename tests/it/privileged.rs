//! Tests programs with more privileges than their caller, as by a set-user-ID bit: the caller controls their
//! environment, so no setting from it may apply.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use support::{Mount, artifacts, c_program, copy_program};

use crate::driver::{Dir, DriverShell};

/// Shell script that preloads the library into every program, like `gc-everywhere on`, with the daemon
/// at its default path, in a mount namespace of its own.
const START: &str = r#"
set -e
cp -a /etc "$ROOT/etc"
echo "$LIBRARY" > "$ROOT/etc/ld.so.preload"
mount --bind "$ROOT/etc" /etc
mount -t tmpfs none /run
mkdir /run/gcgroupfs
ln -s "$SOCKET" /run/gcgroupfs/gcgroup.sock
export GCGROUP_SOCKET=/nowhere GCGROUP_GROUP=team GCGROUP_MEMORY_LIMIT=1 GCGROUP_FREEZE=1 GCGROUP_PRIORITY=0
exec setpriv --reuid 1000 --regid 1000 --clear-groups "$ROOT/program"
"#;

#[test]
fn environment_does_not_configure_privileged_programs() {
    let mount = Mount::new();
    fs::create_dir(mount.path().join("team")).expect("root may create a group");
    let simgpu = artifacts().simgpu().display().to_string();
    let (at, found) = (format!("-L{simgpu}"), format!("-Wl,-rpath,{simgpu}"));
    let program = mount.root().join("program");
    let built = c_program("driver_shell.c", &["-pthread", &at, &found, "-lcuda"]);
    copy_program(&built, &program);
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).expect("the owner may change the mode");
    let mut command = mount.bare_command("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", START]);
    command.env("ROOT", mount.root()).env("SOCKET", mount.socket());
    command.env("LIBRARY", artifacts().preload());
    let shell = DriverShell::spawn(command);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(
        fs::metadata(dir.path()).expect("the process is governed").uid(),
        0
    );
    assert_eq!(mount.read("team", "gcgroup.procs"), "");
    for (file, value) in [
        ("memory.limit", "max"),
        ("compute.freeze", "0"),
        ("compute.priority", "8"),
    ] {
        assert_eq!(mount.read(shell.pid(), file), value, "{file}");
    }
}
