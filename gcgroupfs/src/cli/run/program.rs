//! The program that `gcgroupfs run` starts: where it is, and whether it can be governed.

use std::env;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{getegid, geteuid};

/// Bytes read of a file; program headers follow the header of the file.
const HEAD: u64 = 16 << 10;

/// Program header that names the dynamic loader.
const PT_INTERP: u32 = 3;

/// Programs that remove `LD_PRELOAD` from the environment, also where they do not change the user.
const CLEANERS: &[&str] = &["sudo", "su", "doas", "pkexec", "runuser"];

/// Returns the file that a program's name stands for, as execvp(3) finds it; the name if there is none.
pub(super) fn find(name: &OsStr) -> PathBuf {
    let path = Path::new(name);
    let found = if name.as_bytes().contains(&b'/') {
        Some(path.to_owned())
    } else {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path)
            .map(|directory| directory.join(name))
            .find(|file| is_executable(file))
    };
    let found = found.unwrap_or_else(|| path.to_owned());
    found.canonicalize().unwrap_or(found)
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Returns why a program is not governed; `None` if it is, or if it cannot be read.
pub(super) fn obstacle(program: &Path) -> Option<&'static str> {
    let name = program.file_name()?.to_str();
    if name.is_some_and(|name| CLEANERS.contains(&name)) {
        return Some("it removes the library from the environment; use gcgroupfs run after it");
    }
    let file = File::open(program).ok()?;
    let changes_user = |file: &Metadata| {
        let mode = file.mode();
        let is_other_user = mode & 0o4000 != 0 && file.uid() != geteuid().as_raw();
        is_other_user || mode & 0o2000 != 0 && file.gid() != getegid().as_raw()
    };
    if file.metadata().is_ok_and(|file| changes_user(&file)) {
        return Some("a set-user-ID program is started without the library");
    }
    let mut head = Vec::new();
    file.take(HEAD).read_to_end(&mut head).ok()?;
    // The loader itself has no loader.
    let is_loader = name.is_some_and(|name| name.starts_with("ld-") || name.starts_with("ld."));
    let is_static = !is_loader && has_loader(&head) == Some(false);
    is_static.then_some("a statically linked program loads no library")
}

/// Returns whether a 64-bit ELF file names a dynamic loader; `None` for other and damaged files.
fn has_loader(head: &[u8]) -> Option<bool> {
    if head.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let half = |at: usize| Some(u16::from_le_bytes(*head.get(at..)?.first_chunk()?));
    let word = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?));
    let long = |at: usize| Some(u64::from_le_bytes(*head.get(at..)?.first_chunk()?));
    // e_phoff, e_phentsize and e_phnum.
    let (offset, size, count) = (usize::try_from(long(32)?).ok()?, half(54)?, half(56)?);
    for number in 0..usize::from(count) {
        let at = offset.checked_add(number.checked_mul(usize::from(size))?)?;
        if word(at)? == PT_INTERP {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::fs::Permissions;

    use super::*;

    /// Returns a file with program headers of these types.
    fn elf(types: &[u32]) -> Vec<u8> {
        let mut head = vec![0; 64];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[32] = 64;
        head[54] = 56;
        head[56] = u8::try_from(types.len()).unwrap();
        for kind in types {
            head.extend(kind.to_le_bytes());
            head.extend([0; 52]);
        }
        head
    }

    #[test]
    fn program_is_found_in_path_as_by_exec() {
        let found = find(OsStr::new("sh"));
        assert!(
            found.is_absolute() && is_executable(&found),
            "{}",
            found.display()
        );
        assert_eq!(find(OsStr::new("/no/such")), Path::new("/no/such"));
        assert_eq!(find(OsStr::new("no-such-program")), Path::new("no-such-program"));
    }

    #[test]
    fn static_program_has_no_loader() {
        assert_eq!(has_loader(&elf(&[6, PT_INTERP, 1])), Some(true));
        assert_eq!(has_loader(&elf(&[6, 1, 2])), Some(false));
        let whole = elf(&[6, 1]);
        for end in 0..whole.len() - 52 {
            assert_eq!(has_loader(&whole[..end]), None, "{end}");
        }
        for text in ["", "#!/bin/sh\n", "\x7fELF\x01\x01"] {
            assert_eq!(has_loader(text.as_bytes()), None);
        }
        let mut far = elf(&[1]);
        far[32..40].fill(0xff);
        assert_eq!(has_loader(&far), None);
    }

    #[test]
    fn obstacle_is_named_for_programs_that_drop_the_library() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, contents: &[u8]| {
            let path = directory.path().join(name);
            fs::write(&path, contents).unwrap();
            path
        };
        let shared = elf(&[PT_INTERP]);
        assert_eq!(obstacle(&file("shared", &shared)), None);
        assert_eq!(obstacle(&file("script", b"#!/bin/sh\n")), None);
        assert_eq!(obstacle(Path::new("/no/such")), None);
        let fixed = elf(&[1]);
        assert!(obstacle(&file("static", &fixed)).unwrap().contains("static"));
        assert_eq!(obstacle(&file("ld-linux-x86-64.so.2", &fixed)), None);
        assert!(obstacle(&file("sudo", &shared)).unwrap().contains("after it"));
        let path = file("own", &shared);
        fs::set_permissions(&path, Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(obstacle(&path), None, "its owner stays the same user");
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1000), None).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o4755)).unwrap();
            assert!(obstacle(&path).unwrap().contains("set-user-ID"));
        }
    }
}
