//! `gcgroupfs hold`: holds settings of processes and groups while a command runs, or while this process does.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command as Program, ExitCode};

use anyhow::Context;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, FromArgMatches};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Socket;
use super::freeze::{path, resolve};
use super::retry::ask_until_answered;
use super::run::execute;
use crate::message::complain;
use gcgroup_client::Client;
use gcgroupfs_model::tree::{HoldOption, Kind, SETTINGS, Setting};

#[derive(Debug, Args)]
#[command(after_help = "\
Settings are held for the process that executes COMMAND, until it has ended, however it ends; its children do not count. \
Without COMMAND they are held for gcgroupfs itself, which prints \"held\" once they are in force, until a signal ends it or the \
other end of its standard input is closed (a pipe whose last writer has ended). A restart of the daemon ends no hold.

Held values apply beside what is written in the control files and what others hold: the strictest is in force, also for \
processes that enter a held group. gcgroupfs explain lists the holders.

Exit status: the command's; 127 if it is not found, 126 if it cannot be run, 125 if the daemon refuses or does not answer \
within 5 seconds (a minute while it has too much to do). Then nothing is held and COMMAND is not started.")]
pub(super) struct Arguments {
    #[command(flatten)]
    values: Values,
    /// Processes and groups by the names of their directories, also on one GPU: 4242, 4242/0,
    /// team/a, /gcgroup/team/a
    #[arg(required = true, value_name = "PID|GROUP", value_parser = path)]
    paths: Vec<String>,
    /// The command and its arguments, after --
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Values to hold, by the names of the control files.
#[derive(Debug, Default)]
struct Values(Vec<(&'static str, String)>);

fn options() -> impl Iterator<Item = (&'static Setting, &'static HoldOption)> {
    let settings = SETTINGS.iter();
    settings.filter_map(|setting| Some((*setting, setting.hold_option.as_ref()?)))
}

impl Args for Values {
    fn augment_args(command: Command) -> Command {
        let names = options().map(|(_, option)| option.name);
        let group = ArgGroup::new("values").args(names).multiple(true).required(true);
        let command = options().fold(command, |command, (setting, option)| {
            let argument = Arg::new(option.name).long(option.name).help(option.help);
            command.arg(match setting.kind {
                Kind::Flag => argument.action(ArgAction::SetTrue),
                Kind::Bytes => argument.value_name("SIZE"),
                _ => argument.value_name("N"),
            })
        });
        command.group(group)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Values {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = options().filter_map(|(setting, option)| {
            let value = match setting.kind {
                Kind::Flag => matches.get_flag(option.name).then(|| "1".to_owned()),
                _ => matches.get_one::<String>(option.name).cloned(),
            };
            Some((setting.name, value?))
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Holds the settings and executes the command in place of this process; without one, waits.
pub(super) fn run(socket: &Socket, arguments: &Arguments) -> ExitCode {
    let (socket, paths) = resolve(socket, &arguments.paths);
    let held = hold(&socket, &arguments.values, &paths);
    let done = held.and_then(|()| match arguments.command.split_first() {
        Some((name, rest)) => {
            let mut program = Program::new(name);
            program.args(rest);
            Ok(execute(program))
        }
        None => wait().map(|()| ExitCode::SUCCESS),
    });
    done.unwrap_or_else(|error| {
        complain!("gcgroupfs: {error:#}");
        ExitCode::from(125)
    })
}

/// Asks the daemon to hold the values for this process.
///
/// # Errors
/// The daemon refuses, or does not answer.
fn hold(socket: &Path, Values(values): &Values, paths: &[String]) -> anyhow::Result<()> {
    let values: Vec<String> = values
        .iter()
        .map(|(file, value)| format!("{file} {value}"))
        .collect();
    let ask = |left| {
        Client::connect_with(socket, left)?
            .patiently()
            .hold(&values, paths)
    };
    Ok(ask_until_answered(ask)??)
}

/// Waits until the other end of standard input is closed.
fn wait() -> anyhow::Result<()> {
    let mut stdout = io::stdout();
    // The parent may have closed the pipe.
    let _ = stdout.write_all(b"held\n").and_then(|()| stdout.flush());
    let stdin = io::stdin();
    let mut watched = [PollFd::new(stdin.as_fd(), PollFlags::empty())];
    loop {
        match poll(&mut watched, PollTimeout::NONE) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for standard input"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Option<Arguments> {
        let command = Arguments::augment_args(Command::new("hold"));
        let matches = command.try_get_matches_from(arguments.iter().copied()).ok()?;
        Arguments::from_arg_matches(&matches).ok()
    }

    #[test]
    fn every_hold_option_names_its_file() {
        for (setting, option) in options() {
            let name = format!("--{}", option.name);
            let (arguments, value) = match setting.kind {
                Kind::Flag => (vec!["hold", &name, "7"], "1"),
                _ => (vec!["hold", &name, "12", "7"], "12"),
            };
            let parsed = parse(&arguments).expect("it is valid");
            assert_eq!(parsed.values.0, [(setting.name, value.to_owned())]);
            assert_eq!(parsed.paths, ["7"]);
        }
    }

    #[test]
    fn command_follows_two_dashes() {
        let parsed = parse(&["hold", "--freeze", "7", "team/a", "--", "ls", "-l", "--freeze"]);
        let parsed = parsed.expect("it is valid");
        assert_eq!(parsed.paths, ["7", "team/a"]);
        assert_eq!(parsed.command, ["ls", "-l", "--freeze"]);
        for wrong in [
            &["hold", "7"][..],
            &["hold", "--freeze"],
            &["hold", "--freeze", "--", "ls"],
            &["hold", "--freeze", "/"],
        ] {
            assert!(parse(wrong).is_none(), "{wrong:?}");
        }
    }
}
