//! `gcgroupfs check-config`: checks a configuration before a daemon reads it, and shows which of its rules
//! matches a process and why the others do not.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use crate::config;
use gcgroupfs_model::rules::{Facts, Rules, Verdict};
use gcgroupfs_model::text::word;
use gcgroupfs_server::containers::Containers;
use gcgroupfs_server::facts;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The configuration [default: that of a daemon started by you, which need not exist]
    file: Option<PathBuf>,
    /// Show which rule matches this process, governed or not, and why the others do not
    #[arg(long)]
    pid: Option<u32>,
}

/// Checks the configuration.
///
/// # Errors
/// * The file cannot be read.
/// * It is wrong: PATH:LINE:COLUMN and what is wrong there.
/// * There is no such process.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let (config, text) = match &arguments.file {
        Some(file) => config::read(file)?,
        // A daemon starts without the default file, too.
        None => config::read_if_there(&super::paths::configuration())?,
    };
    let Some(pid) = arguments.pid else { return Ok(()) };
    let mut facts = facts::of_pid(pid).with_context(|| format!("no process {pid}"))?;
    facts.container = Containers::default().name(&facts.cgroups).unwrap_or_default();
    super::print(explain(&config.rules, &text, &facts)?.as_bytes())
}

/// Returns the verdict of each rule on the process.
fn explain(rules: &Rules, text: &str, facts: &Facts) -> Result<String, std::fmt::Error> {
    let mut out = describe(facts)?;
    let mut holds = None;
    for judgement in rules.judgements(facts) {
        let (line, _) = config::place(text, judgement.offset);
        write!(out, "rule {}, line {line}", judgement.number)?;
        if let Some(name) = judgement.name {
            write!(out, " ({name})")?;
        }
        match (judgement.verdict, holds) {
            (Err(why), _) => writeln!(out, ": no: {why}")?,
            (Ok(_), Some(first)) => writeln!(out, ": matches, but rule {first} comes first")?,
            (Ok(verdict), None) => {
                writeln!(out, ": yes")?;
                out.push_str(&consequences(&verdict)?);
                holds = Some(judgement.number);
            }
        }
    }
    if holds.is_none() {
        writeln!(
            out,
            "no rule is for it: it stays where it begins, and nothing is set for it"
        )?;
    }
    Ok(out)
}

fn describe(facts: &Facts) -> Result<String, std::fmt::Error> {
    let mut out = format!("pid {}\n", facts.pid);
    match &facts.user {
        Some(user) => writeln!(out, "  uid {} ({user})", facts.uid)?,
        None => writeln!(out, "  uid {}", facts.uid)?,
    }
    write!(out, "  gid {}", facts.gid)?;
    for gid in facts.groups.iter().filter(|gid| **gid != facts.gid) {
        write!(out, " {gid}")?;
    }
    writeln!(out, "\n  comm {}", facts.comm)?;
    match &facts.exe {
        Some(exe) => writeln!(out, "  exe {}", word(&exe.to_string_lossy()))?,
        None => writeln!(out, "  exe not known")?,
    }
    for cgroup in &facts.cgroups {
        writeln!(out, "  cgroup {}", word(cgroup))?;
    }
    if let Some(container) = &facts.container {
        writeln!(out, "  container {}", word(container))?;
    }
    match &facts.wish {
        Some(wish) => writeln!(out, "  wish {}", word(wish))?,
        None => writeln!(out, "  no wish")?,
    }
    Ok(out)
}

fn consequences(verdict: &Verdict) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    match &verdict.group {
        Some(group) => {
            let whose = if group.delegate { ", its user's" } else { "" };
            writeln!(out, "  group {}{whose}", word(&group.path))?;
            for line in group.settings.lines() {
                writeln!(out, "    {line}")?;
            }
        }
        None => writeln!(out, "  group: where it begins")?,
    }
    let lines = verdict.process.lines();
    if !lines.is_empty() {
        writeln!(out, "  process")?;
    }
    for line in lines {
        writeln!(out, "    {line}")?;
    }
    if verdict.required {
        writeln!(out, "  required: CUDA is refused if it cannot be governed there")?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explain_gives_reasons_and_first_matching_verdict() {
        let text = "\
[[rule]]
name = \"slurm\"
match.cgroup = \"/slurm/**\"
group.name = \"jobs/{cgroup:job_*}\"

[[rule]]
match.uid = 1000
group = { name = \"users/{user}\", delegate = true, memory.limit = \"1K\" }
process.compute.priority = 9
required = true
[[rule]]
";
        let rules = config::parse(text, "x.toml".as_ref()).unwrap().rules;
        let facts = Facts {
            pid: 7,
            uid: 1000,
            gid: 100,
            groups: vec![100, 27],
            user: Some("alice".into()),
            comm: "python3".into(),
            cgroups: vec!["/user.slice".into()],
            ..Facts::default()
        };
        let said = explain(&rules, text, &facts).unwrap();
        assert_eq!(
            said,
            "\
pid 7
  uid 1000 (alice)
  gid 100 27
  comm python3
  exe not known
  cgroup /user.slice
  no wish
rule 1, line 1 (slurm): no: cgroup /user.slice is not /slurm/**
rule 2, line 6: yes
  group users/alice, its user's
    memory.limit 1024
  process
    compute.priority 9
  required: CUDA is refused if it cannot be governed there
rule 3, line 11: matches, but rule 2 comes first
"
        );
        let hostile = Facts {
            comm: "\u{202e}x y=".into(),
            exe: Some("/tmp/x\nrule 1, line 1: yes\u{1b}[2J".into()),
            cgroups: vec!["/a\u{2028}b".into()],
            wish: Some("a\u{1b}[2J".into()),
            ..facts.clone()
        };
        let said = explain(&rules, text, &hostile).unwrap();
        for line in [
            "  comm \\342\\200\\256x\\040y\\075\n",
            "  exe /tmp/x\\012rule\\0401,\\040line\\0401:\\040yes\\033[2J\n",
            "  cgroup /a\\342\\200\\250b\n",
            "  wish a\\033[2J\n",
            "no: cgroup /a\\342\\200\\250b is not /slurm/**\n",
        ] {
            assert!(said.contains(line), "{said}");
        }
        assert!(said.is_ascii(), "{said:?}");
        let nothing = explain(&Rules::default(), "", &facts).unwrap();
        assert!(nothing.contains("no rule is for it"), "{nothing}");
    }
}
