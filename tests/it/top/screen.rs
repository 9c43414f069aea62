//! A terminal of 80 columns and 24 lines in which a program runs: a tmux server of its own.

use std::cell::RefCell;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use support::{DEADLINE, Mount, wait_until};

/// Script that runs the program, and prints its exit status and the terminal's settings.
const SCRIPT: &str = "\
echo before
sh -c 'echo $$ > \"$0.pid\"; exec \"$@\"' \"$0\" \"$@\"
echo \"status $?\"
stty -a
exec cat
";

#[derive(Debug)]
pub(crate) struct Screen {
    directory: PathBuf,
    /// A child, not a daemon, so that it ends with the test in every case.
    server: RefCell<Child>,
    /// Last content, for messages.
    shown: RefCell<String>,
}

impl Screen {
    /// Runs a command with its arguments and environment in a new terminal.
    #[track_caller]
    pub(crate) fn start(mount: &Mount, command: &Command) -> Self {
        let directory = mount.root().join("screen");
        fs::create_dir(&directory).expect("a new directory");
        fs::write(directory.join("script"), SCRIPT).expect("a new file");
        let settings = "set -g status off\nset -g default-terminal screen\nset -g escape-time 0\n";
        fs::write(directory.join("tmux.conf"), settings).expect("a new file");
        let mut server = tmux(&directory, &["-D", "-u", "-f"]);
        server.arg(directory.join("tmux.conf"));
        // SAFETY: prctl may be called between fork and exec.
        unsafe {
            server.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?));
        }
        let server = server
            .spawn()
            .expect("tmux starts: scripts/setup-debian.sh installs it");
        let screen = Self {
            directory,
            server: RefCell::new(server),
            shown: RefCell::default(),
        };
        wait_until("tmux answers", || {
            screen.run(&["show-options", "-g"]).status.success()
        });
        let mut tmux = tmux(
            &screen.directory,
            &["new-session", "-d", "-x", "80", "-y", "24", "env"],
        );
        for (name, value) in command.get_envs() {
            if let (Some(name), Some(value)) = (name.to_str(), value.and_then(|value| value.to_str())) {
                tmux.arg(format!("{name}={value}"));
            }
        }
        tmux.arg("sh").arg(screen.directory.join("script"));
        tmux.arg(command.get_program()).args(command.get_args());
        let output = output(tmux);
        assert!(output.status.success(), "{output:?}");
        screen
    }

    /// Takes the terminal away without a warning: kills the server.
    #[track_caller]
    pub(crate) fn kill_terminal(&self) {
        self.server.borrow_mut().kill().expect("the server runs");
    }

    fn run(&self, arguments: &[&str]) -> Output {
        output(tmux(&self.directory, arguments))
    }

    /// Makes the terminal so many columns wide.
    #[track_caller]
    pub(crate) fn resize(&self, columns: u16) {
        let output = self.run(&["resize-window", "-x", &columns.to_string(), "-y", "24"]);
        assert!(output.status.success(), "{output:?}");
    }

    /// Presses keys by their names, as `Enter` or `F9`.
    #[track_caller]
    pub(crate) fn press(&self, keys: &[&str]) {
        let output = self.run(&[&["send-keys"], keys].concat());
        assert!(output.status.success(), "{output:?}");
    }

    /// Types a text and the Enter key.
    #[track_caller]
    pub(crate) fn enter(&self, text: &str) {
        let output = self.run(&["send-keys", "-l", text]);
        assert!(output.status.success(), "{output:?}");
        self.press(&["Enter"]);
    }

    /// Returns the content, one string for each line.
    pub(crate) fn lines(&self) -> Vec<String> {
        let output = self.run(&["capture-pane", "-p"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = text.lines().map(|line| line.trim_end().to_owned()).collect();
        *self.shown.borrow_mut() = match output.status.success() {
            true => text,
            false => format!("{output:?}, server: {:?}", self.server.borrow_mut().try_wait()),
        };
        lines
    }

    /// Returns the content with the control sequences of colours.
    pub(crate) fn colored(&self) -> String {
        let output = self.run(&["capture-pane", "-p", "-e"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until the content satisfies a condition, and returns it.
    ///
    /// # Panics
    /// After the deadline, with the content.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, condition: impl Fn(&[String]) -> bool) -> Vec<String> {
        let start = std::time::Instant::now();
        loop {
            let lines = self.lines();
            if condition(&lines) {
                return lines;
            }
            assert!(
                start.elapsed() < DEADLINE,
                "no screen where {what}:\n{}",
                self.shown.borrow()
            );
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Waits until a line has all these texts.
    #[track_caller]
    pub(crate) fn wait_line(&self, texts: &[&str]) -> String {
        let has = |line: &&String| texts.iter().all(|text| line.contains(text));
        let lines = self.wait(&format!("a line has {texts:?}"), |lines| {
            lines.iter().any(|line| has(&line))
        });
        lines.iter().find(has).expect("it was there").clone()
    }

    /// Returns the pid of the program.
    #[track_caller]
    pub(crate) fn pid(&self) -> i32 {
        let mut pid = None;
        wait_until("the program has started", || {
            let text = fs::read_to_string(self.directory.join("script.pid")).unwrap_or_default();
            pid = text.trim().parse().ok();
            pid.is_some()
        });
        pid.expect("it was read")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Ends the programs in the terminal too.
        let _ = self.run(&["kill-server"]);
        let mut server = self.server.borrow_mut();
        let _ = server.kill();
        let _ = server.wait();
    }
}

/// Returns a tmux command for the server of a directory.
fn tmux(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("tmux");
    command
        .arg("-S")
        .arg(directory.join("tmux"))
        .args(arguments)
        .env("TERM", "screen")
        .env("LC_ALL", "C.UTF-8")
        .env_remove("TMUX")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

#[track_caller]
fn output(mut tmux: Command) -> Output {
    tmux.stdout(Stdio::piped()).stderr(Stdio::piped());
    tmux.output().expect("tmux starts")
}
