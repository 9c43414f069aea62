//! A process under test: its output, line by line, and its input.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::failure::keep;
use crate::hang::threads;
use crate::wait::{DEADLINE, wait_for, wait_until};
use crate::watchdog::{Begun, begin};

/// A child whose stdout is read line by line. Killed when dropped, or when the thread that started it ends.
#[derive(Debug)]
pub struct Governed {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    said: Vec<String>,
    stderr: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
    _begun: Begun,
}

impl Governed {
    /// Starts the command with all three standard streams piped.
    pub fn spawn(mut command: Command) -> Self {
        let name = format!("{command:?}");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // SAFETY: prctl may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let (send, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if send.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        let stderr = Arc::new(Mutex::new(String::new()));
        let reader = child.stderr.take().map(|from| {
            let into = Arc::clone(&stderr);
            thread::spawn(move || {
                for line in BufReader::new(from).lines().map_while(Result::ok) {
                    let mut text = into.lock().unwrap_or_else(PoisonError::into_inner);
                    text.push_str(&line);
                    text.push('\n');
                }
            })
        });
        let stdin = child.stdin.take();
        Self {
            name,
            child,
            stdin,
            lines,
            said: Vec::new(),
            stderr,
            reader,
            _begun: begin(None),
        }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid is a positive i32")
    }

    /// Returns the next line of stdout, or `None` at its end.
    ///
    /// # Panics
    /// If neither comes before the deadline.
    #[track_caller]
    pub fn line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(DEADLINE) {
            Ok(line) => {
                self.said.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no line for {DEADLINE:?} after {}", self.story()),
        }
    }

    /// Returns the next line of stdout if one is available.
    pub fn line_now(&mut self) -> Option<String> {
        let line = self.lines.try_recv().ok()?;
        self.said.push(line.clone());
        Some(line)
    }

    /// Skips to the line that begins with `prefix`, and returns it.
    ///
    /// # Panics
    /// If stdout ends before that, or no line comes before the deadline.
    #[track_caller]
    pub fn expect(&mut self, prefix: &str) -> String {
        while let Some(line) = self.line() {
            if line.starts_with(prefix) {
                return line;
            }
        }
        let status = wait_for("the process ends", || self.child.try_wait().transpose());
        panic!("no line {prefix:?} before the end ({status:?}): {}", self.story())
    }

    /// Sends a line to stdin.
    #[track_caller]
    pub fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin was not closed before");
        if let Err(error) = writeln!(stdin, "{line}").and_then(|()| stdin.flush()) {
            panic!("cannot send {line:?}: {error}; {}", self.story());
        }
    }

    /// Sends a line to stdin and returns the next line of stdout.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.line()
            .unwrap_or_else(|| panic!("no answer to {line:?}: {}", self.story()))
    }

    /// Closes the child's stdin.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    pub fn signal(&self, signal: Signal) {
        // Our own child, not waited for yet, so the pid is still valid.
        let _ = kill(Pid::from_raw(self.pid()), signal);
    }

    /// Closes stdin and waits for the exit.
    ///
    /// # Panics
    /// If the child does not exit before the deadline.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        self.close_stdin();
        let status = wait_for("the process ends", || {
            self.child.try_wait().expect("the process is a child")
        });
        if let Some(reader) = self.reader.take()
            && status.signal().is_none()
        {
            // Other processes may have inherited its stderr and keep it open.
            wait_until("the process's stderr is closed", || reader.is_finished());
        }
        status
    }

    /// Waits for the exit and returns the stdout lines not read yet.
    ///
    /// # Panics
    /// If it does not exit with success.
    #[track_caller]
    pub fn finish(&mut self) -> Vec<String> {
        self.close_stdin();
        let mut rest = Vec::new();
        while let Some(line) = self.line() {
            rest.push(line);
        }
        let status = self.wait();
        assert!(status.success(), "{status}: {}", self.story());
        rest
    }

    /// Returns whether it is still running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns its stderr output so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn story(&self) -> String {
        format!("stdout {:?}, stderr {:?}", self.said, self.stderr())
    }
}

impl Drop for Governed {
    fn drop(&mut self) {
        if thread::panicking() {
            self.said.extend(self.lines.try_iter());
            let (said, stderr) = (self.said.join("\n"), self.stderr());
            let text = format!("{}\nstdout:\n{said}\nstderr:\n{stderr}", self.name);
            keep(&format!("process-{}.log", self.pid()), text);
        }
        let _ = self.child.kill();
        let deadline = Instant::now() + DEADLINE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                eprintln!("a killed process does not end:\n{}", threads(self.child.id()));
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}
