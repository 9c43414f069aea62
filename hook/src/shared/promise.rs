//! The file that says that every process must be governed, whatever its environment says. It outlives the
//! daemon, which makes it beside its socket; so do cluster engines. In a container it is beside the library.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use gcgroup_abi::{DEFAULT_SOCKET, REQUIRED_FILE};

/// Directory of the library in a container.
const IN_CONTAINER: &str = "/usr/lib/gcgroupfs";

/// Returns whether the file is beside the socket or the default socket, or in a container. The environment,
/// which names the socket, adds a place and removes none.
pub(crate) fn is_made(socket: &OsStr) -> bool {
    let places = [
        Path::new(socket).parent(),
        Path::new(DEFAULT_SOCKET).parent(),
        Some(Path::new(IN_CONTAINER)),
    ];
    places.into_iter().flatten().any(is_in)
}

/// Returns whether the file is in a directory. In one such as /tmp anybody could make it.
fn is_in(directory: &Path) -> bool {
    let is_closed = |directory: fs::Metadata| directory.permissions().mode() & 0o002 == 0;
    directory.join(REQUIRED_FILE).exists() && fs::metadata(directory).is_ok_and(is_closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_counts_only_where_not_everybody_can_make_it() {
        let directory = std::env::temp_dir().join(format!("gcgroup-promise-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let socket = directory.join("gcgroup.sock");
        let with_mode = |mode| {
            fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
            is_made(socket.as_os_str())
        };
        let before = with_mode(0o755);
        fs::write(directory.join(REQUIRED_FILE), "").unwrap();
        let found = [with_mode(0o755), with_mode(0o1777)];
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!((before, found), (false, [true, false]));
    }
}
