//! The configuration file: TOML, read at start and at SIGHUP. This module knows the format only; each part of
//! the daemon takes its own settings.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::unistd::{Group, User};
use serde::Deserialize;

use gcgroupfs_model::arbiter::Options;
use gcgroupfs_model::rules::{ConfiguredGroups, Names, Rules, with_names};
use gcgroupfs_model::tree::OnUnmanaged;

/// Default path of root's daemon; read if it exists and no other path is given.
pub(crate) const DEFAULT_PATH: &str = "/etc/gcgroupfs.toml";

/// The whole configuration. Missing keys have their defaults; unknown keys are refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Reaction to processes that use a GPU without the library.
    pub on_unmanaged: OnUnmanaged,
    pub compute: Options,
    #[serde(rename = "rule")]
    pub rules: Rules,
    #[serde(rename = "group")]
    pub groups: ConfiguredGroups,
}

/// Path of the configuration, for reading it again.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    named: Option<PathBuf>,
    /// Path if none was named; this file need not exist.
    default: PathBuf,
}

impl Source {
    pub(crate) fn new(named: Option<PathBuf>, default: PathBuf) -> Self {
        Self { named, default }
    }

    /// Returns the configuration and its text; the defaults if no path was named and the default file does
    /// not exist.
    ///
    /// # Errors
    /// * The file cannot be read.
    /// * It is wrong: PATH:LINE:COLUMN and what is wrong there.
    pub(crate) fn read(&self) -> anyhow::Result<(Config, String)> {
        match &self.named {
            Some(path) => read(path),
            None => read_if_there(&self.default),
        }
    }

    /// Parses a text that was read earlier.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub(crate) fn understand(&self, text: String) -> anyhow::Result<(Config, String)> {
        let path = self.named.as_ref().unwrap_or(&self.default);
        Ok((parse(&text, path)?, text))
    }
}

/// Returns the configuration in a file, and its text.
///
/// # Errors
/// As [`Source::read`].
pub(crate) fn read(path: &Path) -> anyhow::Result<(Config, String)> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok((parse(&text, path)?, text))
}

/// Returns the configuration in a file, and its text; if there is no such file, the default one.
///
/// # Errors
/// As [`Source::read`].
pub(crate) fn read_if_there(path: &Path) -> anyhow::Result<(Config, String)> {
    match fs::read_to_string(path) {
        Ok(text) => Ok((parse(&text, path)?, text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok((Config::default(), String::new())),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Parses a configuration; `path` is for messages.
///
/// # Errors
/// As [`Source::read`].
pub(crate) fn parse(text: &str, path: &Path) -> anyhow::Result<Config> {
    let error = match with_names(NAMES, || toml::from_str(text)) {
        Ok(config) => {
            let mut config: Config = config;
            config.rules.note_lines(text);
            return Ok(config);
        }
        Err(error) => error,
    };
    let (line, column) = place(text, error.span().map_or(0, |span| span.start));
    bail!(
        "{}:{line}:{column}: {}",
        path.display(),
        error.message().replace('\n', "; ")
    )
}

/// Names of this machine.
const NAMES: Names = Names {
    user: |name| {
        let found = User::from_name(name).map_err(|error| error.to_string())?;
        Ok(found.map(|user| user.uid.as_raw()))
    },
    group: |name| {
        let found = Group::from_name(name).map_err(|error| error.to_string())?;
        Ok(found.map(|group| group.gid.as_raw()))
    },
};

/// Returns line and column of a byte of a text, from 1.
pub(crate) fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()) + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroupfs_model::arbiter::{self, STRICT};
    use gcgroupfs_model::rules::Facts;

    fn parsed(text: &str) -> anyhow::Result<Config> {
        parse(text, Path::new("gcgroupfs.toml"))
    }

    fn complaint(text: &str) -> String {
        parsed(text).unwrap_err().to_string()
    }

    #[test]
    fn empty_configuration_has_the_defaults() {
        for text in ["", "[compute]\n", "# nothing\n"] {
            assert_eq!(parsed(text).unwrap(), Config::default(), "{text:?}");
        }
    }

    #[test]
    fn action_on_unmanaged_processes_is_log_or_signal() {
        let action = |text: &str| parsed(text).map(|config| config.on_unmanaged);
        assert_eq!(action("on_unmanaged = \"signal\"").unwrap(), OnUnmanaged::Signal);
        assert_eq!(
            action("on_unmanaged = \"log\"").unwrap(),
            Config::default().on_unmanaged
        );
        assert!(complaint("on_unmanaged = \"kill\"").contains("signal"));
    }

    #[test]
    fn manual_shows_all_defaults() {
        assert_eq!(parsed(&arbiter::sample()).unwrap(), Config::default());
    }

    #[test]
    fn rule_in_the_readme_is_valid() {
        let readme = include_str!("../../README.md");
        let (_, rest) = readme.split_once("```toml\n").unwrap();
        let (sample, _) = rest.split_once("```").unwrap();
        let rules = parsed(sample).unwrap().rules;
        assert_eq!(rules.judgements(&Facts::default()).count(), 1);
    }

    #[test]
    fn written_keys_override_defaults_only() {
        let config = parsed("[compute]\npolicy = \"strict\"\nwindow_usec = 1_000\n").unwrap();
        assert_eq!(config.compute.policy, STRICT);
        assert_ne!(config.compute.window_usec, Options::default().window_usec);
        assert_eq!(config.compute.cycle_usec, Options::default().cycle_usec);
    }

    #[test]
    fn owner_of_a_configured_group_is_a_name_or_a_number() {
        let access = |text: &str| {
            let config = parsed(&format!("[[group]]\nname = \"a\"\n{text}\n"));
            config.map(|config| {
                config
                    .groups
                    .iter()
                    .map(|group| group.access())
                    .collect::<Vec<_>>()
            })
        };
        let named = access("uid = \"root\"\ngid = \"root\"");
        assert_eq!(named.unwrap(), [(Some(0), Some(0), None)]);
        assert_eq!(access("uid = 0\ngid = 0").unwrap(), [(Some(0), Some(0), None)]);
        assert!(access("uid = \"no-such-user\"").is_err());
    }

    #[test]
    fn errors_name_line_and_column() {
        for (text, place, about) in [
            ("[compute]\nwindow_usec = 5\n", ":2:15: ", "100 to 100000, got 5"),
            ("[compute]\n\n  cycle_usec = -1", ":3:16: ", "got -1"),
            ("[compute]\nwindow = 5\n", ":2:1: ", "unknown field `window`"),
            ("[computer]\n", ":1:2: ", "unknown field `computer`"),
            (
                "[compute]\npolicy = \"fair\"\n",
                ":2:10: ",
                "expected weighted or strict",
            ),
            ("[compute]\nlinger_usec = \"1ms\"\n", ":2:15: ", "invalid type"),
            ("[compute\n", ":1:9: ", ""),
            ("[rule]\n", ":1:1: ", "sequence"),
            ("[[rule]]\nmatch.pid = 1\n", ":2:7: ", "unknown field `pid`"),
            ("[[rule]]\nmatch.uid = -1\n", ":2:13: ", "-1"),
            (
                "[[rule]]\nmatch.uid = [0, \"no-such-user\"]\n",
                ":2:17: ",
                "no user \"no-such-user\"",
            ),
            ("[[rule]]\nmatch.gid = \"no-such-group\"\n", ":2:13: ", "no group"),
            ("[[rule]]\nmatch.exe = []\n", ":2:13: ", "empty list"),
            ("[[rule]]\nmatch.comm = \"[\"\n", ":2:14: ", "unclosed"),
            ("[[rule]]\n[[rule]]\ngroup = \"a\"\n", ":3:9: ", "invalid type"),
            ("[[rule]]\ngroup.name = \"a/{user\"\n", ":2:14: ", "without its }"),
            (
                "[[rule]]\ngroup.delegate = true\n",
                ":2:1: ",
                "missing field `name`",
            ),
            ("[[rule]]\nprocess.memory.limit = \"1X\"\n", ":2:24: ", "or max"),
            (
                "[[rule]]\nprocess.memory.max = 1\n",
                ":2:16: ",
                "unknown field `max`",
            ),
            ("[[rule]]\nprocess.compute.priority = 16\n", ":2:28: ", "0 to 15"),
            ("[[rule]]\nprocess.compute.max = true\n", ":2:23: ", "a quota"),
        ] {
            let said = complaint(text);
            assert!(said.starts_with(&format!("gcgroupfs.toml{place}")), "{said}");
            assert!(said.contains(about) && !said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn named_file_must_exist_default_need_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("none.toml");
        let source = |named: Option<&Path>| Source::new(named.map(Path::to_owned), path.clone());
        assert_eq!(source(None).read().unwrap().0, Config::default());
        assert!(source(Some(&path)).read().is_err());
        fs::write(&path, "[compute]\npolicy = \"strict\"\n").unwrap();
        for named in [Some(path.as_path()), None] {
            assert_eq!(source(named).read().unwrap().0.compute.policy, STRICT);
        }
    }
}
