//! The manual pages of the commands, gcgroupfs(1) and gcgroupfs-COMMAND(1), and gcgroupfs.toml(5), made from
//! the command line's definition and from gcgroupfs(5).

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_mangen::Man;

use super::{Interface, examples};

/// Date of the last change of the pages' text.
pub(super) const DATE: &str = "2026-11-23";

/// Sections that the pages of all commands have.
const EXIT_STATUS: &str = ".SH \"EXIT STATUS\"
0: done. 1: refused or failed; standard error has the reason. 2: the command line is wrong.
";
const ERRORS: &str = ".SH ERRORS
Errors of control files are those of the section ERRORS in
.BR gcgroupfs (5).
Where no daemon answers at the socket, a command that needs one says so and exits with 1, after 5 seconds at most.
";
const SEE_ALSO: &str = ".SH \"SEE ALSO\"
.BR gcgroupfs (1),
.BR gcgroupfs (5),
.BR gcgroupfs.toml (5)
";

/// Sections of gcgroupfs(5) that are about the configuration.
const OF_CONFIGURATION: [&str; 3] = ["CONFIGURATION", "RULES", "CONFIGURED GROUPS"];

/// Writes all pages below a directory, as man(1) looks for them: `man1/NAME.1`, `man5/NAME.5`.
///
/// # Errors
/// The directory cannot be written.
pub(crate) fn write(interface: Interface, directory: &Path) -> io::Result<()> {
    for (name, text) in all(interface)? {
        let section = name.rsplit_once('.').map_or("", |(_, section)| section);
        let directory = directory.join(format!("man{section}"));
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(name), text)?;
    }
    Ok(())
}

/// Returns file names and texts of all pages.
fn all(interface: Interface) -> io::Result<Vec<(String, String)>> {
    let of_files = super::page(interface.clone());
    let mut pages = vec![("gcgroupfs.toml.5".to_owned(), of_configuration(&of_files))];
    pages.push(("gcgroupfs.5".to_owned(), of_files));
    let mut command = interface.command.disable_help_subcommand(true);
    command.build();
    pages.push(("gcgroupfs.1".to_owned(), of_command(&command)?));
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("gcgroupfs-{}", command.get_name());
        let page = of_command(&command.clone().display_name(name.clone()))?;
        pages.push((format!("{name}.1"), page));
    }
    Ok(pages)
}

fn of_command(command: &Command) -> io::Result<String> {
    let mut command = command.clone();
    let name = command
        .get_display_name()
        .unwrap_or(command.get_name())
        .to_owned();
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let source = concat!("gcgroupfs ", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone())
        .title(name.to_uppercase())
        .section("1")
        .date(DATE)
        .source(source)
        .manual("User commands");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    writeln!(text, ".SH SYNOPSIS\n.B {}", super::roff(usage))?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    let help = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    if !help.is_empty() {
        writeln!(text, ".SH NOTES")?;
        for paragraph in help.split("\n\n") {
            writeln!(text, ".PP\n{}", super::roff(paragraph))?;
        }
    }
    // Breaks beside vertical space, which mandoc(1) objects to.
    let text = String::from_utf8_lossy(&text).replace("\n.br\n.sp\n", "\n.sp\n");
    let text = text.replace("\n\n.br\n", "\n.sp\n");
    let mut text = text.replace("\n.sp\n.br\n", "\n.sp\n");
    if !help.contains("Exit status") {
        text.push_str(EXIT_STATUS);
    }
    if let Some(example) = examples::of(command.get_name()) {
        let example = super::roff(example);
        text.push_str(&format!(".SH EXAMPLES\n.EX\n{example}\n.EE\n"));
    }
    Ok(text + ERRORS + SEE_ALSO)
}

/// Returns gcgroupfs.toml(5): the sections of gcgroupfs(5) about the configuration.
fn of_configuration(of_files: &str) -> String {
    let sections = of_files.split("\n.SH ");
    let ours = sections.filter(|section| {
        let title = section.lines().next().unwrap_or_default();
        OF_CONFIGURATION.contains(&title)
    });
    let head = format!(
        ".TH GCGROUPFS.TOML 5 \"{DATE}\" \"gcgroupfs {}\" \"File formats\"\n.SH NAME\ngcgroupfs.toml \\- \
         configuration of the gcgroupfs daemon\n",
        env!("CARGO_PKG_VERSION")
    );
    let errors = ".SH ERRORS\nA daemon that starts with a wrong configuration reports file, line and reason, and exits \
        with 1. At SIGHUP it logs them and keeps the configuration that it has.\n.B gcgroupfs check\\-config\nprints \
        the same and exits with 1.\n";
    let body: String = ours.map(|section| format!(".SH {section}\n")).collect();
    head + &body + errors + SEE_ALSO
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::interface;

    #[test]
    fn every_command_has_a_page_with_its_sections() {
        let pages = all(interface()).unwrap();
        let command = interface().command;
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let names: Vec<String> = shown
            .map(|command| format!("gcgroupfs-{}.1", command.get_name()))
            .collect();
        for name in names.iter().map(String::as_str).chain(["gcgroupfs.1"]) {
            let (_, text) = pages.iter().find(|(file, _)| file == name).unwrap();
            for section in ["NAME", "SYNOPSIS", "EXAMPLES", "ERRORS", "\"SEE ALSO\""] {
                assert_eq!(
                    text.matches(&format!(".SH {section}\n")).count(),
                    1,
                    "{name} {section}\n{text}"
                );
            }
            assert!(!text.contains(".SH EXTRA"), "{name}\n{text}");
            let nr_statuses = text.matches("Exit status").count() + text.matches("\"EXIT STATUS\"").count();
            assert_eq!(nr_statuses, 1, "{name}\n{text}");
        }
        assert_eq!(pages.len(), names.len() + 3);
    }

    #[test]
    fn configuration_has_its_page() {
        let pages = all(interface()).unwrap();
        let (_, text) = pages.iter().find(|(file, _)| file == "gcgroupfs.toml.5").unwrap();
        for part in [
            "patience_usec",
            ".BR [[rule]] .",
            "group.delegate",
            ".BR [[group]] ,",
            ".SH ERRORS",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains(".SH PRESSURE"));
    }

    /// Errors are in alphabetical order in the section.
    #[test]
    fn every_errno_has_its_entry() {
        let page = super::super::page(interface());
        let (_, errors) = page.split_once(".SH ERRORS\n").unwrap();
        let (errors, _) = errors.split_once("\n.SH ").unwrap();
        let entries: Vec<&str> = errors
            .split(".TP\n.B ")
            .skip(1)
            .map(|entry| entry.lines().next().unwrap())
            .collect();
        let mut wanted: Vec<&str> = ERRNOS
            .lines()
            .filter_map(|line| {
                let (_, errno) = line.trim().split_once("=> errno::")?;
                Some(errno.trim_end_matches(','))
            })
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        assert!(wanted.len() > 10, "{wanted:?}");
        assert_eq!(entries, wanted);
    }

    /// The table of errors.
    const ERRNOS: &str = include_str!("../../model/src/error.rs");
}
