//! The manual page gcgroupfs(5), and a Markdown table of the control files, made from the table of files.

mod examples;
pub(crate) mod pages;

use std::fmt::Write;

use clap::Command;
use gcgroup_abi::environment::{VARIABLES, Variable};
use gcgroupfs_model::arbiter;
use gcgroupfs_model::file::{ControlFile, On};
use gcgroupfs_model::files;
use gcgroupfs_model::tree::{SETTINGS, all_counters, described_idle_actions, described_lease_actions};

/// The manual page, but for the files.
const TEMPLATE: &str = include_str!("manual/gcgroupfs.5.in");

/// Placeholders in the template.
const FILES: &str = "@FILES@\n";
const DATE_PLACE: &str = "@DATE@";
const DEFAULTS_PLACE: &str = "@DEFAULTS@\n";
const RULE_FILES: &str = "@RULE_FILES@";
const COMMANDS: &str = "@COMMANDS@\n";
const KEYS: &str = "@KEYS@\n";
const VARIABLES_PLACE: &str = "@VARIABLES@\n";

/// Placeholder in the entries of files that show counters.
const COUNTERS: &str = "@COUNTERS@";

/// Placeholder in the entry of `compute.policy`.
const POLICIES: &str = "@POLICIES@";

/// Place of the actions of leases in the text of a file.
const LEASE_ACTIONS: &str = "@LEASE_ACTIONS@";

/// Place of the actions of `gcgroup.idle`.
const IDLE_ACTIONS: &str = "@IDLE_ACTIONS@";

/// The control files as a Markdown table, one row each.
pub(crate) fn table() -> String {
    let header = "| file | mode | in | what |\n| --- | --- | --- | --- |\n".to_owned();
    files::all().fold(header, |mut out, file| {
        let (name, doc) = (file.name, doc(file));
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "| `{name}` | {} | `{}` | {doc} |",
            access(file),
            places(file.on, "` `")
        );
        out
    })
}

/// Parts of the pages that are defined by the command line.
#[derive(Debug, Clone)]
pub(crate) struct Interface {
    pub(crate) command: Command,
    /// Names and help of the keys of `gcgroupfs top`.
    pub(crate) keys: Vec<(&'static str, &'static str)>,
}

/// Returns gcgroupfs(5), for man(1).
pub(crate) fn page(interface: Interface) -> String {
    let files = files::all().fold(String::new(), |mut out, file| {
        let _ = writeln!(
            out,
            ".TP\n.BR {} \" ({}; {})\"\n{}",
            roff(file.name),
            access(file),
            roff(&places(file.on, ", ")),
            roff(&doc(file))
        );
        out
    });
    TEMPLATE
        .replace(DATE_PLACE, pages::DATE)
        .replace(FILES, &files)
        .replace(DEFAULTS_PLACE, &roff(&arbiter::sample()))
        .replace(RULE_FILES, &rule_files())
        .replace(VARIABLES_PLACE, &variables())
        .replace(COMMANDS, &commands(interface.command))
        .replace(KEYS, &keys(&interface.keys))
}

/// The commands, as entries: usage and description.
fn commands(command: Command) -> String {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let shown = command
        .get_subcommands_mut()
        .filter(|command| !command.is_hide_set());
    shown.fold(String::new(), |mut out, command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let usage = command.render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ");
        let _ = writeln!(out, ".TP\n.B {}\n{}", roff(usage), roff(&about));
        out
    })
}

/// The keys of `gcgroupfs top`, as entries.
fn keys(keys: &[(&str, &str)]) -> String {
    keys.iter().fold(String::new(), |mut out, (names, help)| {
        let _ = writeln!(out, ".TP\n.B {}\n{}", roff(names), roff(help));
        out
    })
}

/// The environment variables, as entries.
fn variables() -> String {
    VARIABLES.iter().fold(String::new(), |mut out, variable| {
        let Variable { name, value, doc, .. } = variable;
        let is_placeholder = value.bytes().all(|byte| byte.is_ascii_uppercase());
        let font = if is_placeholder { "BI" } else { "B" };
        let gap = if is_placeholder { " " } else { "" };
        let _ = writeln!(out, ".TP\n.{font} {name}={gap}{value}\n{}", roff(doc.trim()));
        out
    })
}

/// The settings that rules may make, as a list in bold.
fn rule_files() -> String {
    let settings = SETTINGS.iter().filter(|setting| setting.for_rules);
    let names = settings.map(|setting| setting.name).chain(["gcgroup.devices"]);
    let names: Vec<&str> = names.collect();
    match names.split_last() {
        Some((last, [])) => format!(".BR {last} ."),
        Some((last, others)) => format!(".BR {} \" or \" {last} .", others.join(" \", \" ")),
        None => String::new(),
    }
}

/// The file's entry.
fn doc(file: &ControlFile) -> String {
    let shown = all_counters().filter_map(|counter| counter.shown);
    let here = shown.filter(|(place, ..)| *place == file.name);
    let counters: Vec<String> = here.map(|(_, key, doc)| format!("{key} ({doc})")).collect();
    file.doc
        .replace(POLICIES, &arbiter::described())
        .replace(IDLE_ACTIONS, &described_idle_actions())
        .replace(LEASE_ACTIONS, &described_lease_actions())
        .replace(COUNTERS, &counters.join(", "))
}

fn access(file: &ControlFile) -> &'static str {
    match (file.mode() & 0o400, file.mode() & 0o200) {
        (_, 0) => "r",
        (0, _) => "w",
        _ => "rw",
    }
}

/// The directories that have a file.
fn places(on: On, separator: &str) -> String {
    let places = [
        (on.root, "/"),
        (on.process, "<pid>/"),
        (on.process && on.device, "<pid>/<gpu>/"),
        (on.group, "<group>/"),
        (on.group && on.device, "<group>/<gpu>/"),
    ];
    places
        .into_iter()
        .filter_map(|(has, place)| has.then_some(place))
        .collect::<Vec<_>>()
        .join(separator)
}

/// Text as man(1) shows it unchanged.
fn roff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::interface;

    #[test]
    fn every_file_has_its_row_and_its_entry() {
        let (table, page) = (table(), page(interface()));
        for file in files::all() {
            assert_eq!(
                table.matches(&format!("| `{}` |", file.name)).count(),
                1,
                "{}",
                file.name
            );
            assert_eq!(
                page.matches(&format!("\n.BR {} \" (", file.name)).count(),
                1,
                "{}",
                file.name
            );
        }
        assert_eq!(table.lines().count(), 2 + files::all().count());
        for placeholder in [
            FILES,
            DATE_PLACE,
            DEFAULTS_PLACE,
            RULE_FILES,
            POLICIES,
            LEASE_ACTIONS,
            IDLE_ACTIONS,
            COUNTERS,
            VARIABLES_PLACE,
            COMMANDS,
            KEYS,
        ] {
            assert!(!page.contains(placeholder.trim()));
        }
    }

    #[test]
    fn every_variable_has_its_entry() {
        let page = page(interface());
        for Variable { name, doc, .. } in VARIABLES {
            assert_eq!(
                page.matches(&format!("\n.TP\n.BI {name}= ")).count()
                    + page.matches(&format!("\n.TP\n.B {name}=")).count(),
                1,
                "{name}"
            );
            assert!(page.contains(&roff(doc.trim())), "{name}");
        }
    }

    #[test]
    fn the_table_says_where_and_how() {
        assert!(table().contains(
            "| `memory.limit` | rw | `<pid>/` `<pid>/<gpu>/` `<group>/` `<group>/<gpu>/` | The most bytes"
        ));
        assert!(table().contains("| `devices` | r | `/` | "));
        assert!(table().contains("| `memory.reclaim` | w | `<pid>/` "));
    }

    #[test]
    fn no_line_of_the_page_is_a_request_by_accident() {
        let known = [
            ".TH", ".SH", ".TP", ".BR", ".RB", ".RI", ".IR", ".BI", ".B", ".I", ".PP", ".nf", ".fi", ".RS",
            ".RE", ".EX", ".EE", ".IP",
        ];
        for line in page(interface())
            .lines()
            .filter(|line| line.starts_with(['.', '\'']))
        {
            let request = line.split(' ').next().unwrap();
            assert!(known.contains(&request), "{line}");
        }
    }

    #[test]
    fn every_setting_is_documented() {
        let page = page(crate::cli::interface());
        let (_, rules) = page.split_once("FILE is\n").unwrap();
        let (rules, _) = rules.split_once(".TP").unwrap();
        for setting in SETTINGS {
            let entry = format!("\n.BR {} \" (rw; ", setting.name);
            assert_eq!(page.matches(&entry).count(), 1, "{}", setting.name);
            assert_eq!(
                rules.contains(setting.name),
                setting.for_rules,
                "{}",
                setting.name
            );
        }
    }
}
