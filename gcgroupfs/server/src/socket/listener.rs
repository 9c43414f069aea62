//! The socket's file: taken over from a dead daemon, never from a living one, and created again when it has
//! been removed.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, bind, connect, listen, shutdown, socket,
};
use nix::sys::stat::{Mode, umask};
use nix::unistd::geteuid;
use tracing::warn;

use gcgroupfs_sys::manager::{self, Stored};
use gcgroupfs_sys::process;

mod restore;

use restore::restore;

/// Length of the accept queue. Clients beyond it wait in connect(2), where the kernel lets them in one by
/// one: a client with many connections delays others by no more than this many.
const BACKLOG: i32 = 64;

/// How long to wait for another daemon that is starting at the same path.
const TAKEOVER_PATIENCE: Duration = Duration::from_secs(2);

/// Device, inode and ctime of a file; inode numbers are soon reused.
type FileId = (u64, u64, i64, i64);

fn id(file: &Metadata) -> FileId {
    (file.dev(), file.ino(), file.ctime(), file.ctime_nsec())
}

/// Name under which the service manager stores the socket.
const NAME: &str = "socket";

/// A listening `SOCK_SEQPACKET` socket, for root's daemon open to all users. Its file is removed on drop,
/// unless the service manager has stored the socket for the next daemon.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Identity of its file; it protects a successor's file.
    file: FileId,
    is_stored: bool,
    /// Pid of the killed daemon from which it was taken over, if that cannot end.
    stuck: Option<u32>,
    /// Last logged reason why the file cannot be created again.
    complaint: String,
}

impl Listener {
    /// Interval between checks of the socket's file.
    pub(super) const LOOK: Duration = Duration::from_millis(500);

    /// Takes over the socket that a killed daemon has stored, or else creates it, and its directory if
    /// missing.
    ///
    /// # Errors
    /// Another daemon listens there, the file there is not a socket, or the path cannot be written.
    pub fn open(stored: &mut Stored, path: &Path) -> anyhow::Result<Self> {
        let address = UnixAddr::new(path).with_context(|| format!("cannot listen on {}", path.display()))?;
        if let Some(socket) = stored.take(NAME) {
            return Self::take_over(socket, path, &address);
        }
        make_directory(path)?;
        // Of two daemons that start at once, one finds its file replaced by the other's later.
        clear(path, &address, TAKEOVER_PATIENCE)?;
        let (socket, file) = make(path, &address)?;
        listen(&socket, Backlog::new(BACKLOG)?)?;
        Ok(Self::of(socket, path, file))
    }

    /// Takes the file at `path` for the socket's, unless another process listens there.
    fn take_over(socket: OwnedFd, path: &Path, address: &UnixAddr) -> anyhow::Result<Self> {
        let (predecessor, ..) = process::owner(&socket)?;
        let probe = new_socket(SockFlag::SOCK_NONBLOCK)?;
        let is_another = connect(probe.as_raw_fd(), address).is_ok()
            && process::owner(&probe).is_ok_and(|(pid, ..)| pid != predecessor);
        let file = fs::symlink_metadata(path).ok().filter(|_| !is_another);
        let file = file.filter(|file| file.file_type().is_socket());
        let is_stuck = Path::new(&format!("/proc/{predecessor}")).exists();
        let mut listener = Self::of(socket, path, file.map_or((0, 0, 0, 0), |file| id(&file)));
        (listener.is_stored, listener.stuck) = (true, is_stuck.then_some(predecessor));
        Ok(listener)
    }

    fn of(socket: OwnedFd, path: &Path, file: FileId) -> Self {
        Self {
            socket,
            path: path.to_owned(),
            file,
            is_stored: false,
            stuck: None,
            complaint: String::new(),
        }
    }

    /// Returns the pid of the killed daemon from which the socket was taken over, if that cannot end.
    pub fn stuck(&self) -> Option<u32> {
        self.stuck
    }

    /// Names this process to clients as the one that listens, and has the service manager store the socket.
    ///
    /// # Errors
    /// Those of listen(2).
    pub(super) fn serve(&mut self) -> anyhow::Result<()> {
        listen(&self.socket, Backlog::new(BACKLOG)?)?;
        if !self.is_stored {
            self.is_stored = manager::store(NAME, &self.socket);
        }
        Ok(())
    }

    /// Has the service manager store the socket in place of the one that it has replaced, and listens. In
    /// this order: if the daemon is killed, its successor has each socket that clients could reach.
    ///
    /// # Errors
    /// Those of listen(2).
    pub(super) fn serve_anew(&mut self) -> anyhow::Result<()> {
        manager::forget(NAME);
        self.is_stored = manager::store(NAME, &self.socket);
        Ok(listen(&self.socket, Backlog::new(BACKLOG)?)?)
    }

    /// Checks the socket's file. If it was removed or replaced, creates another socket there, which does not
    /// listen yet, and returns the old one, which can no longer be reached. Does not wait. Failures are
    /// logged once and the check is repeated: another daemon that listens there is left alone. Any other file
    /// there is renamed to `NAME.displaced`.
    pub(super) fn look(&mut self) -> Option<OwnedFd> {
        match restore(&self.path, &mut self.file) {
            Ok(None) => self.complaint.clear(),
            Ok(Some(socket)) => {
                let path = self.path.display();
                warn!("{path} was removed or replaced; another socket is there now");
                self.complaint.clear();
                return Some(std::mem::replace(&mut self.socket, socket));
            }
            Err(error) => {
                let complaint = format!("{error:#}");
                if complaint != self.complaint {
                    warn!("the socket was removed or replaced: new processes are not governed: {complaint}");
                    self.complaint = complaint;
                }
            }
        }
        None
    }

    /// Refuses further connections for good.
    pub(super) fn refuse(&mut self) {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
        manager::forget(NAME);
        self.is_stored = false;
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.is_stored && fs::symlink_metadata(&self.path).is_ok_and(|file| id(&file) == self.file) {
            // A failure cannot be reported any more; the next daemon removes the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Creates the directory of a socket if missing.
fn make_directory(path: &Path) -> anyhow::Result<()> {
    let directory = match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .with_context(|| format!("cannot make {}", directory.display()))
}

/// Creates a socket at a path where no file exists.
fn make(path: &Path, address: &UnixAddr) -> anyhow::Result<(OwnedFd, FileId)> {
    let socket = new_socket(SockFlag::SOCK_NONBLOCK)?;
    bind_with_mode(&socket, address).with_context(|| format!("cannot make {}", path.display()))?;
    if fs::symlink_metadata(path)?.mode() & 0o777 != mode() {
        fs::set_permissions(path, Permissions::from_mode(mode()))?;
    }
    Ok((socket, id(&fs::symlink_metadata(path)?)))
}

/// Returns the mode of the socket's file: a user's daemon serves only that user's processes.
fn mode() -> u32 {
    if geteuid().is_root() { 0o666 } else { 0o600 }
}

/// Binds a socket whose file has its [`mode`] from the beginning: on a thread with a umask of its own, where
/// the system allows that.
fn bind_with_mode(socket: &OwnedFd, address: &UnixAddr) -> nix::Result<()> {
    let bound = || {
        if unshare(CloneFlags::CLONE_FS).is_ok() {
            umask(Mode::from_bits_truncate(!mode() & 0o777));
        }
        bind(socket.as_raw_fd(), address)
    };
    thread::scope(|scope| scope.spawn(bound).join()).unwrap_or(Err(Errno::EAGAIN))
}

pub(super) fn new_socket(flags: SockFlag) -> nix::Result<OwnedFd> {
    socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        flags | SockFlag::SOCK_CLOEXEC,
        None,
    )
}

/// Removes a socket on which no process listens, or stops to listen within `patience`.
fn clear(path: &Path, address: &UnixAddr, patience: Duration) -> anyhow::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot look at {}", path.display())),
        Ok(file) if !file.file_type().is_socket() => bail!("{} is there and is no socket", path.display()),
        Ok(_) => {}
    }
    let deadline = Instant::now() + patience;
    loop {
        let probe = new_socket(SockFlag::SOCK_NONBLOCK)?;
        match connect(probe.as_raw_fd(), address) {
            Err(Errno::ECONNREFUSED) => {
                return fs::remove_file(path).with_context(|| format!("cannot replace {}", path.display()));
            }
            Err(Errno::ENOENT) => return Ok(()),
            // A daemon that was killed may still be ending, or have left a copy of the socket in a process
            // that it was starting.
            Ok(()) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            // Includes a full backlog and a socket of another type: a process listens there.
            _ => bail!(
                "another daemon listens on {} (give this one another --socket)",
                path.display()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> anyhow::Result<Listener> {
        Listener::open(&mut Stored::default(), path)
    }

    #[test]
    fn socket_has_its_mode_and_is_removed_with_its_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/s.sock");
        let listener = open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, mode());
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn socket_of_a_living_daemon_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let _listener = open(&path).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("another daemon"), "{error}");
        assert!(path.exists());
    }

    #[test]
    fn dead_daemon_does_not_remove_its_successors_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let mut dead = open(&path).unwrap();
        // As after `kill -9`: the file exists and no process listens.
        dead.socket = new_socket(SockFlag::empty()).unwrap();
        let _successor = open(&path).unwrap();
        drop(dead);
        assert!(path.exists());
    }

    #[test]
    fn removed_socket_is_made_again_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let mut listener = open(&path).unwrap();
        assert!(listener.look().is_none());
        fs::remove_file(&path).unwrap();
        assert!(listener.look().is_some() && listener.look().is_none());
        listener.serve_anew().unwrap();
        let probe = new_socket(SockFlag::empty()).unwrap();
        connect(probe.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        fs::remove_dir_all(directory.path()).unwrap();
        assert!(listener.look().is_some());
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn lock_on_the_directory_delays_no_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let held = fs::File::open(directory.path()).unwrap();
        held.lock().unwrap();
        let begun = Instant::now();
        let mut listener = open(&path).unwrap();
        assert!(begun.elapsed() < TAKEOVER_PATIENCE);
        fs::remove_file(&path).unwrap();
        assert!(listener.look().is_some() && path.exists());
    }

    #[test]
    fn socket_never_has_another_mode_than_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let own = mode();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    if let Ok(file) = fs::metadata(&path) {
                        assert_eq!(file.mode() & 0o777, own);
                    }
                }
            });
            (0..200).for_each(|_| drop(open(&path).unwrap()));
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn changed_permissions_do_not_replace_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let mut listener = open(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert!(listener.look().is_none());
        drop(listener);
        assert!(!path.exists(), "its file is known as its own");
    }

    #[test]
    fn file_in_place_of_the_socket_is_moved_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let mut listener = open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert!(listener.look().is_some());
        let aside = directory.path().join("s.sock.displaced");
        assert_eq!(fs::read_to_string(aside).unwrap(), "precious");
    }

    #[test]
    fn another_daemon_in_place_of_the_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let mut listener = open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let mut other = open(&path).unwrap();
        assert!(listener.look().is_none() && listener.complaint.contains("another daemon"));
        assert!(other.look().is_none());
        drop(other);
        assert!(listener.look().is_some() && listener.complaint.is_empty());
    }

    #[test]
    fn file_that_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.sock");
        fs::write(&path, "precious").unwrap();
        assert!(open(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn path_too_long_for_a_socket_is_reported() {
        let path = PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
        let error = format!("{:#}", open(&path).unwrap_err());
        assert!(error.contains("File name too long"), "{error}");
    }
}
