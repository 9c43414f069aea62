//! Files to which the hook writes lines: `GCGROUP_LOG` and `GCGROUP_TRACE`. Without these variables a line
//! costs two loads.
//!
//! A file is opened for each line: the hook keeps no descriptor that the program could close. Symbolic links
//! are not followed, and only regular files are written, so that no write waits for a reader.

use std::ffi::{CString, OsStr, c_int};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

/// Log of events.
pub(crate) static LOG: Sink = Sink::new(1000);
/// Log of events, hooked functions and failed driver calls.
pub(crate) static TRACE: Sink = Sink::new(10_000);

/// A file to which lines are appended.
pub(crate) struct Sink {
    /// Path of the file; unset without one.
    file: OnceLock<CString>,
    /// The largest number of lines in one second.
    most: u32,
    second: AtomicU64,
    nr_lines: AtomicU32,
}

/// Writes one line to each file that there is: time in seconds since 1970, pid, thread and text. Never fails.
#[inline]
pub(crate) fn line(text: impl FnOnce() -> String) {
    if LOG.is_on() || TRACE.is_on() {
        let text = text();
        LOG.write(&text);
        TRACE.write(&text);
    }
}

impl Sink {
    const fn new(most: u32) -> Self {
        Self {
            file: OnceLock::new(),
            most,
            second: AtomicU64::new(0),
            nr_lines: AtomicU32::new(0),
        }
    }

    /// Directs all later lines to the file at `path`. Only the first call counts.
    pub(crate) fn start(&self, path: &OsStr) {
        // The program may change its directory later.
        let path = std::path::absolute(Path::new(path)).ok();
        let path = path.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
        if let Some(path) = path {
            let _ = self.file.set(path);
        }
    }

    /// Returns whether lines are written.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.file.get().is_some()
    }

    /// Writes one line to this file alone, if there is one.
    #[cold]
    pub(crate) fn write(&self, text: &str) {
        let Some(path) = self.file.get() else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if !self.is_allowed(now.as_secs()) {
            return;
        }
        let (pid, tid) = (std::process::id(), super::gettid());
        let (seconds, msec) = (now.as_secs(), now.subsec_millis());
        let text = text.replace(char::is_control, " ");
        append(path, &format!("{seconds}.{msec:03} {pid} {tid} {text}\n"));
    }

    /// Returns whether another line may be written in this second. Threads that race may write a few more.
    fn is_allowed(&self, second: u64) -> bool {
        if self.second.swap(second, Relaxed) != second {
            self.nr_lines.store(0, Relaxed);
        }
        self.nr_lines.fetch_add(1, Relaxed) < self.most
    }
}

/// Appends a line with one write(2). System calls are made directly, because those of the C library are
/// cancellation points.
fn append(path: &CString, line: &str) {
    let flags = libc::O_WRONLY
        | libc::O_APPEND
        | libc::O_CREAT
        | libc::O_NOFOLLOW
        | libc::O_NONBLOCK
        | libc::O_NOCTTY
        | libc::O_CLOEXEC;
    // SAFETY: a C string; numbers.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600) };
    let Ok(fd) = c_int::try_from(fd) else { return };
    if fd < 0 {
        return;
    }
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for what fstat(2) writes, which is read only if the call succeeded.
    let is_regular = unsafe {
        libc::fstat(fd, stat.as_mut_ptr()) == 0
            && stat.assume_init_ref().st_mode & libc::S_IFMT == libc::S_IFREG
    };
    if is_regular {
        // SAFETY: the text outlives the call.
        unsafe { libc::syscall(libc::SYS_write, fd, line.as_ptr(), line.len()) };
    }
    // SAFETY: just opened and not owned elsewhere.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn name(path: &Path) -> CString {
        CString::new(path.as_os_str().as_bytes()).unwrap()
    }

    /// Returns an empty directory of this test.
    fn directory(test: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("gcgroup-log-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn lines_are_appended_to_a_private_file() {
        let directory = directory("appended");
        let path = directory.join("log");
        let sink = Sink::new(2);
        sink.write("no file yet");
        sink.start(path.as_os_str());
        sink.second.store(u64::MAX, Relaxed);
        sink.write("one\nforged");
        sink.write("two");
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let pid = std::process::id();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(
            lines[0].contains(&format!(" {pid} ")) && lines[0].ends_with(" one forged"),
            "{text}"
        );
        assert!(lines[1].ends_with(" two"), "{text}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn links_and_fifos_are_not_written() {
        let directory = directory("links");
        let (target, link, fifo) = (directory.join("a"), directory.join("b"), directory.join("c"));
        fs::write(&target, "").unwrap();
        symlink(&target, &link).unwrap();
        append(&name(&link), "x\n");
        assert_eq!(fs::read_to_string(&target).unwrap(), "");
        let c_fifo = name(&fifo);
        // SAFETY: a C string; a number.
        assert_eq!(unsafe { libc::mkfifo(c_fifo.as_ptr(), 0o600) }, 0);
        // Returns, although no process reads.
        append(&c_fifo, "x\n");
        let reader = fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        append(&c_fifo, "x\n");
        let mut nr_bytes: c_int = 0;
        // SAFETY: room for a number.
        let answer = unsafe {
            libc::ioctl(
                std::os::fd::AsRawFd::as_raw_fd(&reader),
                libc::FIONREAD,
                &raw mut nr_bytes,
            )
        };
        assert_eq!((answer, nr_bytes), (0, 0));
        append(&name(&directory), "x\n");
        fs::remove_dir_all(&directory).unwrap();
    }
}
