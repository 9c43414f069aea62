//! Examples of the manual pages: one or more command lines for each command.

/// Returns the example of a command, a line for each command line.
pub(super) fn of(command: &str) -> Option<&'static str> {
    let row = EXAMPLES.iter().find(|(name, _)| *name == command);
    row.map(|(_, text)| *text)
}

/// The examples. None needs another user than the owner of the processes and groups in it, except those of
/// commands for administrators.
const EXAMPLES: &[(&str, &str)] = &[
    (
        "gcgroupfs",
        "gcgroupfs run --memory-limit 8G -- ./train\ngcgroupfs ls --tree\ngcgroupfs top",
    ),
    ("mount", "gcgroupfs mount --supervise"),
    ("get", "gcgroupfs get 4711/memory.current"),
    (
        "set",
        "gcgroupfs set 4711/memory.limit 8G\ngcgroupfs set team/compute.freeze 1 --wait --timeout 10",
    ),
    (
        "mkdir",
        "gcgroupfs mkdir team\ngcgroupfs set team/gcgroup.procs 4711",
    ),
    ("rmdir", "gcgroupfs rmdir team"),
    (
        "wait",
        "gcgroupfs wait team/gcgroup.events populated=0\ngcgroupfs wait 4711/gcgroup.events frozen=1 --timeout 10",
    ),
    ("explain", "gcgroupfs explain 4711\ngcgroupfs explain team"),
    (
        "ls",
        "gcgroupfs ls --tree\ngcgroupfs ls --sort memory\ngcgroupfs ls --json",
    ),
    (
        "events",
        "gcgroupfs events team\ngcgroupfs events --follow --json",
    ),
    (
        "report",
        "gcgroupfs report --since 7d --by group\ngcgroupfs report --by process --json",
    ),
    ("top", "gcgroupfs top\ngcgroupfs top --batch --count 3 --delay 2"),
    (
        "run",
        "gcgroupfs run --memory-limit 8G --compute-max 50% -- python3 train.py\n\
      gcgroupfs run --name night --swap --priority 12 --for 8h -- ./batch",
    ),
    ("freeze", "gcgroupfs freeze --wait 4711 team"),
    ("thaw", "gcgroupfs thaw 4711 team"),
    (
        "hold",
        "gcgroupfs hold --freeze 4711 -- ./interactive\ngcgroupfs hold --memory-limit 50% team -- sleep 60",
    ),
    (
        "kill",
        "gcgroupfs kill --grace 30s team/night\ngcgroupfs kill --grace 0 4711",
    ),
    ("gvm", "gcgroupfs gvm -- ./experiment.sh"),
    ("suspend", "gcgroupfs suspend --wait --timeout 60 4711"),
    ("resume", "gcgroupfs resume --wait 4711"),
    (
        "check-config",
        "gcgroupfs check-config /etc/gcgroupfs.toml --pid 4711",
    ),
    (
        "doctor",
        "gcgroupfs doctor\ngcgroupfs doctor --bug-report report.txt",
    ),
    (
        "record",
        "gcgroupfs record night.rec\ngcgroupfs record --show night.rec\ngcgroupfs top --replay night.rec",
    ),
    ("cdi", "gcgroupfs cdi --output /etc/cdi/gcgroupfs.json"),
    ("files", "gcgroupfs files"),
    ("manual", "gcgroupfs manual --write ~/man"),
    ("coverage", "gcgroupfs coverage"),
    ("completions", "gcgroupfs completions bash"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::interface;

    #[test]
    fn every_command_has_an_example_of_itself() {
        let command = interface().command;
        for sub in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let text = of(sub.get_name()).unwrap_or_default();
            let begins = format!("gcgroupfs {}", sub.get_name());
            assert!(text.starts_with(&begins), "{begins}");
        }
    }

    #[test]
    fn examples_are_valid_command_lines() {
        for line in EXAMPLES.iter().flat_map(|(_, text)| text.lines()) {
            let parsed = interface().command.try_get_matches_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }
}
