//! The program that `gcgroupfs run` starts: where it is, and whether it can be governed.

use std::collections::VecDeque;
use std::env;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{getegid, geteuid, getuid};

use crate::cli::paths::is_preloaded_everywhere;
use crate::elf;
use gcgroupfs_model::diagnosis::Program;

/// Bytes read of a file for its first line, which the kernel cuts off earlier.
const HEAD: u64 = 4096;

/// Programs that remove `LD_PRELOAD` from the environment, also where they do not change the user.
const CLEANERS: &[&str] = &["sudo", "su", "doas", "pkexec", "runuser"];

/// Programs that execute the first of their operands that is a program.
const STARTERS: &[&str] = &[
    "chrt", "ionice", "nice", "nohup", "numactl", "setsid", "stdbuf", "taskset", "timeout",
];

/// Most interpreters and starters that are followed: the kernel follows 5 interpreters.
const MAX_FOLLOWED: usize = 8;

/// Attribute of a file that gives its process capabilities: capabilities(7).
const CAPABILITIES: &CStr = c"security.capability";

const REMOVES: &str = "it removes the library from the environment";

/// Returns the file that a program's name stands for, as execvp(3) finds it; the name if there is none.
pub(super) fn find(name: &OsStr) -> PathBuf {
    let found = find_executable(name).unwrap_or_else(|| name.into());
    found.canonicalize().unwrap_or(found)
}

fn find_executable(name: &OsStr) -> Option<PathBuf> {
    let is_executable = |file: &PathBuf| {
        file.metadata()
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(is_executable);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut files = env::split_paths(&path).map(|directory| directory.join(name));
    files.find(is_executable)
}

/// Returns why a command line is not governed; `None` if it is, or if it cannot be executed. Follows
/// interpreters of scripts, env(1) and [`STARTERS`].
pub(super) fn obstacle(command: &[OsString]) -> Option<String> {
    let mut command = command.to_vec();
    // Then no environment is needed, and the process is found in its job by its ancestors.
    let is_everywhere = is_preloaded_everywhere();
    for _ in 0..MAX_FOLLOWED {
        let (name, rest) = command.split_first()?;
        let program = find(name);
        let named = |why: &str| Some(format!("{}: {why}", program.display()));
        let short = Path::new(name)
            .file_name()
            .and_then(OsStr::to_str)
            .unwrap_or_default();
        if CLEANERS.contains(&short) && !is_everywhere {
            return named("it removes the library from the environment; use gcgroupfs run after it");
        }
        // Otherwise exec(3) fails.
        let can_be_executed = |file: &Metadata| file.is_file() && file.mode() & 0o111 != 0;
        let metadata = program.metadata().ok().filter(can_be_executed)?;
        if changes_user(&program, &metadata) && !is_everywhere {
            return named("a set-user-ID program, or one with capabilities, is started without the library");
        }
        let Ok(head) = read_head(&program) else {
            return named("it cannot be read, so it is unknown whether it loads the library");
        };
        if let Some(why) = elf_obstacle(&program) {
            return named(why);
        }
        command = if let Some(interpreter) = interpreter(&head) {
            [interpreter, vec![program.into()], rest.to_vec()].concat()
        } else if short == "env" {
            match after_env(rest) {
                Ok(command) => command,
                Err(why) if !is_everywhere => return named(why),
                Err(_) => return None,
            }
        } else if STARTERS.contains(&short) {
            let is_program = |word: &&OsString| find_executable(word).is_some();
            let at = rest.iter().position(|word| is_program(&word))?;
            rest.get(at..)?.to_vec()
        } else {
            return None;
        };
    }
    None
}

/// Returns whether the loader runs the program with elevated privileges, and so without the library.
fn changes_user(program: &Path, file: &Metadata) -> bool {
    let mode = file.mode();
    let is_other_user = mode & 0o4000 != 0 && file.uid() != geteuid().as_raw();
    // Without the right to execute, the bit has another meaning.
    let is_other_group = mode & 0o2010 == 0o2010 && file.gid() != getegid().as_raw();
    // Root has all capabilities anyway.
    let gains = !getuid().is_root() && gcgroupfs_sys::has_attribute(program, CAPABILITIES);
    is_other_user || is_other_group || gains
}

fn read_head(file: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(file)?.take(HEAD).read_to_end(&mut head)?;
    Ok(head)
}

fn elf_obstacle(program: &Path) -> Option<&'static str> {
    let name = program.file_name().and_then(OsStr::to_str).unwrap_or_default();
    // The loader itself has no loader.
    let is_loader = name.starts_with("ld-") || name.starts_with("ld.");
    match elf::kind(&File::open(program).ok()?) {
        Program::Foreign => Some("a program for another processor, or of 32 bits, cannot load the library"),
        Program::Static if !is_loader => Some("a statically linked program loads no library"),
        Program::Static | Program::Dynamic | Program::Unknown => None,
    }
}

/// Returns the words of a script's first line, as the kernel splits it: the interpreter, and all that follows
/// as one argument.
fn interpreter(head: &[u8]) -> Option<Vec<OsString>> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line = line.trim_ascii();
    let end = line.iter().position(is_blank).unwrap_or(line.len());
    let (name, argument) = line.split_at(end);
    let words = [name, argument.trim_ascii()]
        .into_iter()
        .filter(|word| !word.is_empty());
    let words: Vec<OsString> = words.map(|word| OsStr::from_bytes(word).to_owned()).collect();
    (!words.is_empty()).then_some(words)
}

/// Returns the command line that env(1) executes with these arguments, or the reason why that is not
/// governed.
fn after_env(arguments: &[OsString]) -> Result<Vec<OsString>, &'static str> {
    let mut left: VecDeque<OsString> = arguments.iter().cloned().collect();
    while let Some(word) = left.pop_front() {
        let text = word.to_string_lossy().into_owned();
        let (option, value) = match (text.strip_prefix("--"), text.strip_prefix('-')) {
            (Some(""), _) => break,
            (Some(long), _) => match long.split_once('=') {
                Some((name, value)) => (name.to_owned(), value.to_owned()),
                None => (long.to_owned(), String::new()),
            },
            (None, Some("")) => return Err(REMOVES),
            (None, Some(short)) => {
                let flags = short.trim_start_matches(['v', '0']);
                let value = flags.get(1..).unwrap_or_default();
                (flags.chars().take(1).collect(), value.to_owned())
            }
            _ if text.starts_with("LD_PRELOAD=") => return Err(REMOVES),
            _ if text.contains('=') => continue,
            _ => {
                left.push_front(word);
                break;
            }
        };
        let mut value = || match value.as_str() {
            "" => left.pop_front().unwrap_or_default(),
            value => value.into(),
        };
        match option.as_str() {
            "i" | "ignore-environment" => return Err(REMOVES),
            "u" | "unset" if value() == "LD_PRELOAD" => return Err(REMOVES),
            "C" | "chdir" => drop(value()),
            "S" | "split-string" => {
                let words = value().to_string_lossy().into_owned();
                words
                    .split_whitespace()
                    .rev()
                    .for_each(|word| left.push_front(word.into()));
            }
            _ => {}
        }
    }
    Ok(left.into())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;
    use crate::elf::tests::elf;

    #[test]
    fn program_is_found_in_path_as_by_exec() {
        let found = find(OsStr::new("sh"));
        assert!(found.is_absolute() && found.exists(), "{}", found.display());
        assert_eq!(find(OsStr::new("/no/such")), Path::new("/no/such"));
        assert_eq!(find(OsStr::new("no-such-program")), Path::new("no-such-program"));
    }

    /// Returns a directory with a program of each kind, and the directory's path.
    fn programs() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        let file = |name: &str, contents: &[u8], mode: u32| {
            let path = path.join(name);
            fs::write(&path, contents).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        };
        let (shared, fixed) = (elf(&[3]), elf(&[1]));
        let mut foreign = shared.clone();
        foreign[18] ^= 1;
        let mut small = shared.clone();
        small[4] = 1;
        for name in ["shared", "sudo", "env", "nice"] {
            file(name, &shared, 0o755);
        }
        file("own", &shared, 0o6755);
        file("locking", &shared, 0o2644);
        for (name, contents) in [
            ("static", &fixed),
            ("ld-linux-x86-64.so.2", &fixed),
            ("foreign", &foreign),
        ] {
            file(name, contents, 0o755);
        }
        file("small", &small, 0o755);
        file("static_file", &fixed, 0o644);
        for (name, line) in [
            ("good", "#!DIR/shared -u"),
            ("plain", "echo"),
            ("bad", "#! DIR/static\t-x y "),
            ("indirect", "#!DIR/bad"),
            ("by_env", "#!DIR/env DIR/static"),
            ("by_env_split", "#!DIR/env -S A=1 DIR/nice -n 5 DIR/static"),
            ("cleared", "#!DIR/env -iS DIR/shared"),
            ("circle", "#!DIR/circle"),
        ] {
            let line = line.replace("DIR", path.to_str().unwrap());
            file(name, format!("{line}\nmore\n").as_bytes(), 0o755);
        }
        (directory, path)
    }

    #[test]
    fn obstacle_is_found_behind_interpreters_and_starters() {
        let (_directory, path) = programs();
        let obstacle = |line: &str| {
            let words = line.split(' ');
            let words = words.map(|word| match word.strip_prefix('@') {
                Some(name) => path.join(name).into(),
                None => word.into(),
            });
            obstacle(&words.collect::<Vec<OsString>>()).unwrap_or_default()
        };
        for line in [
            "@shared @static",
            "@good",
            "@plain",
            "@circle",
            "@missing",
            "/",
            "@static_file",
            "@own",
            "@locking",
            "@ld-linux-x86-64.so.2 @shared",
            "@env -u HOME A=@static @good",
            "@env",
            "@nice -n 5 @shared @static",
        ] {
            assert_eq!(obstacle(line), "", "{line}");
        }
        for (line, why) in [
            ("@static", "static"),
            ("@bad", "static"),
            ("@indirect", "static"),
            ("@by_env", "static"),
            ("@by_env_split", "static"),
            ("@cleared", "environment"),
            ("@foreign", "processor"),
            ("@small", "processor"),
            ("@sudo @shared", "after it"),
            ("@nice -n 5 @static", "static"),
            ("@nice @nice @env A=1 -- @static", "static"),
            ("@env - @shared", "environment"),
            ("@env -u LD_PRELOAD @shared", "environment"),
            ("@env --unset=LD_PRELOAD @shared", "environment"),
            ("@env -vi @shared", "environment"),
            ("@env LD_PRELOAD= @shared", "environment"),
            ("@env -C / -u HOME @static", "static"),
        ] {
            let found = obstacle(line);
            assert!(found.contains(why), "{line}: {found:?}");
        }
        if geteuid().is_root() {
            std::os::unix::fs::chown(path.join("own"), Some(1000), None).unwrap();
            for mode in [0o4755, 0o4711] {
                fs::set_permissions(path.join("own"), Permissions::from_mode(mode)).unwrap();
                assert!(obstacle("@own").contains("set-user-ID"), "{mode:o}");
            }
        }
    }
}
