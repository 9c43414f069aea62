//! The state file in the file system: checked, opened and locked, and replaced atomically.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd::geteuid;
use thiserror::Error;

use super::replay::{boot_id, header};

/// How long to wait for a lock, and the time between two attempts.
const PATIENCE: Duration = Duration::from_secs(2);
pub(super) const PAUSE: Duration = Duration::from_millis(5);

/// Links are not followed, because others may write the directory; opening a FIFO does not wait for a writer.
const FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;

/// Why the file cannot be used.
#[derive(Debug, Error)]
pub(crate) enum Refusal {
    /// The file is of a wrong type, owner or mode. The text says which.
    #[error("{} {what}", path.display())]
    Unfit { path: PathBuf, what: String },
    #[error("{} is in use by another gcgroupfs (give this one another --state-dir)", .0.display())]
    InUse(PathBuf),
    /// A file system error, perhaps temporary.
    #[error("{}: {error}", path.display())]
    System { path: PathBuf, error: io::Error },
}

impl Refusal {
    fn system(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        Self::System { path, error }
    }
}

/// Opens and locks the file; creates it and its directory if missing.
///
/// # Errors
/// A [`Refusal`].
pub(super) fn lock(path: &Path) -> Result<File, Refusal> {
    lock_within(path, PATIENCE)
}

/// Opens and locks the file like [`lock`], without waiting for another holder of the lock.
///
/// # Errors
/// A [`Refusal`].
pub(super) fn lock_now(path: &Path) -> Result<File, Refusal> {
    lock_within(path, Duration::ZERO)
}

fn lock_within(path: &Path, patience: Duration) -> Result<File, Refusal> {
    loop {
        let file = open(path)?;
        if !take(&file, patience) {
            return Err(Refusal::InUse(path.to_owned()));
        }
        if is_at(&file, path) {
            return Ok(file);
        }
    }
}

/// Opens or creates the file; read-only if it cannot be written.
///
/// # Errors
/// A [`Refusal`].
pub(crate) fn open(path: &Path) -> Result<File, Refusal> {
    let file = open_any(path).map_err(|error| match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => unfit(path, kind(&found)),
        _ => Refusal::system(path, error),
    })?;
    let found = file.metadata().map_err(|error| Refusal::system(path, error))?;
    let mode = found.mode() & 0o7777;
    if !found.is_file() {
        return Err(unfit(path, kind(&found)));
    }
    if found.uid() != geteuid().as_raw() {
        return Err(unfit(path, &format!("belongs to user {}", found.uid())));
    }
    if mode & 0o022 != 0 {
        let what = format!("can be written by others (mode {mode:04o})");
        return Err(unfit(path, &what));
    }
    if mode != 0o600 {
        // Other users may have opened it already. On a read-only file system the mode cannot be changed.
        let _ = file.set_permissions(Permissions::from_mode(0o600));
    }
    Ok(file)
}

fn unfit(path: &Path, what: &str) -> Refusal {
    Refusal::Unfit {
        path: path.to_owned(),
        what: format!("{what}: the daemon does not touch it (remove it, or give another --state-dir)"),
    }
}

fn kind(found: &fs::Metadata) -> &'static str {
    let kind = found.file_type();
    if kind.is_symlink() {
        "is a symbolic link"
    } else if kind.is_dir() {
        "is a directory"
    } else if kind.is_fifo() {
        "is a FIFO"
    } else {
        "is no regular file"
    }
}

fn open_any(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(FLAGS);
    loop {
        match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied
                ) =>
            {
                let mut options = OpenOptions::new();
                // The error of opening for writing says more than that of opening for reading.
                return options
                    .read(true)
                    .custom_flags(FLAGS)
                    .open(path)
                    .map_err(|_| error);
            }
            opened => return opened,
        }
        match create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                let file = made?;
                // An empty file has lost its contents.
                file.write_all_at(&header(&boot_id(), 0), 0)?;
                return Ok(file);
            }
        }
    }
}

/// Creates the file, and its directory if missing.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    options.mode(0o600).custom_flags(FLAGS);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            options.open(path)
        }
        made => made,
    }
}

/// Locks a file, waiting at most `patience`: a process that a killed daemon was starting may hold the lock
/// until it executes its program or ends. Returns whether the file is locked.
fn take(file: &File, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => return true,
            // A file system without locks cannot keep another daemon out.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => return true,
            Err(_) if Instant::now() >= deadline => return false,
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Returns whether the file is still at `path`.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(file), Ok(named)) = (file.metadata(), fs::symlink_metadata(path)) else {
        return false;
    };
    (file.ino(), file.dev()) == (named.ino(), named.dev())
}

/// Returns whether the file was opened for writing too.
pub(super) fn is_writable(file: &File) -> bool {
    let flags = fcntl(file, FcntlArg::F_GETFL);
    flags.is_ok_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Reads a whole file, and returns it with its text.
pub(super) fn read_all(path: &Path, file: File) -> Result<(File, Vec<u8>), Refusal> {
    let text = file.metadata().and_then(|found| read(&file, found.len()));
    text.map(|text| (file, text))
        .map_err(|error| Refusal::system(path, error))
}

/// Reads the first `length` bytes of a file, independent of its name.
pub(crate) fn read(file: &File, length: u64) -> io::Result<Vec<u8>> {
    let mut text = vec![0; usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?];
    file.read_exact_at(&mut text, 0)?;
    Ok(text)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// A new file that is to replace another. Removed if it does not, because a full disk needs its space.
#[derive(Debug)]
pub(crate) struct Fresh(Option<PathBuf>);

impl Fresh {
    /// Creates a file beside `path`, locked before it gets that name.
    pub(crate) fn beside(path: &Path) -> io::Result<(Self, File)> {
        let path = path.with_extension("new");
        remove(&path)?;
        let file = create(&path)?;
        let fresh = Self(Some(path));
        if !take(&file, Duration::ZERO) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok((fresh, file))
    }

    /// Renames the file to `path`.
    pub(crate) fn install(mut self, path: &Path) -> io::Result<()> {
        if let Some(name) = &self.0 {
            fs::rename(name, path)?;
        }
        self.0 = None;
        Ok(())
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}
