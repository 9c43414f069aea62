//! Questions to Slurm's controller, through `scontrol` and `squeue`: what a job was given must not come from
//! its environment.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

/// Longest wait for the controller, seconds.
const PATIENCE: &str = "10";

/// Longest value of a field, bytes.
const MAX_FIELD: usize = 65536;

/// Returns the value of a field of a job, which has a different name in other versions of Slurm; empty if
/// there is none. `squeue` prints the field alone, so no text of the user can look like it. `program` is
/// `scontrol`, which is beside `squeue`.
///
/// # Errors
/// The controller does not answer, or does not know the job; the field has none of the names, or is longer
/// than 64 KiB.
pub(crate) fn field(program: &Path, job: u32, names: &[&str]) -> anyhow::Result<String> {
    let squeue = program.with_file_name("squeue");
    let mut why = anyhow::anyhow!("there is no such field");
    for name in names {
        // The number of an array is also that of one of its jobs: all of them are printed.
        let format = format!("JobID:20,{name}:{MAX_FIELD}");
        let number = job.to_string();
        let text = match scontrol(&squeue, &["-h", "-t", "all", "-j", &number, "-O", &format]) {
            Ok(text) => text,
            Err(error) => {
                why = error;
                continue;
            }
        };
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        let Some((_, rest)) = lines.find(|(first, _)| *first == number) else {
            // For an unknown name, squeue prints lines without text.
            continue;
        };
        let value = rest.trim();
        ensure!(value.len() < MAX_FIELD, "{name} of job {job} is too long");
        return Ok(match value {
            "(null)" => String::new(),
            value => value.to_owned(),
        });
    }
    Err(why.context(format!("{} of job {job} is not known", names.join(" or "))))
}

/// Runs `scontrol`, or another of Slurm's programs, and returns what it prints.
///
/// # Errors
/// The program fails, or takes longer than 10 s.
pub(crate) fn scontrol(program: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let mut child = Command::new("timeout")
        .args(["--kill-after=1", PATIENCE])
        .arg(program)
        .args(arguments)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("timeout(1) cannot be run")?;
    let (mut text, mut why) = (String::new(), String::new());
    // Both are short: neither pipe can be full while the other one is read.
    let pipes = (child.stdout.take(), child.stderr.take());
    if let (Some(mut stdout), Some(mut stderr)) = pipes {
        stdout.read_to_string(&mut text)?;
        stderr.read_to_string(&mut why)?;
    }
    let is_done = match child.wait() {
        Ok(status) => status.success(),
        // slurmstepd waits for all its children, and may have taken this one's status.
        Err(_) => why.is_empty() && !text.is_empty(),
    };
    if !is_done {
        bail!("{} {}: {}", program.display(), arguments.join(" "), why.trim());
    }
    Ok(text)
}

/// Returns the value of `KEY=VALUE` in a line of `scontrol`; the value ends at a blank.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let mut words = line.split_whitespace();
    words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// Returns what `scontrol show job` prints about one job.
///
/// `scontrol` prints the job's name and other texts of the user as they are, with newlines. So the text must
/// begin with the job's number, and the only line that begins with `UserId=` must be the second, after lines
/// that can have nothing else than numbers: then the name has no newline that matters. A caller must accept a
/// line only if it is the only one of its kind.
///
/// # Errors
/// The controller does not answer, or does not know the job; the name has a newline.
fn job(program: &Path, job: u32) -> anyhow::Result<String> {
    let ask = |name: &str| scontrol(program, &["--details", "show", "job", name]);
    let mut text = ask(&job.to_string())?;
    // The number of an array is also that of one of its jobs, and that of a heterogeneous job that of its
    // first component: all of them are printed. A forged name here cannot pass the checks below.
    let names: BTreeSet<String> = text
        .lines()
        .filter_map(|line| part_of_several(line, job))
        .collect();
    let mut names = names.iter();
    if let Some(name) = names.next() {
        ensure!(
            names.next().is_none(),
            "the controller names job {job} in more than one way"
        );
        text = ask(name)?;
    }
    ensure!(
        text.starts_with(&format!("JobId={job} ")),
        "the controller does not know job {job}"
    );
    let is_owner = |line: &str| line.starts_with("   UserId=");
    let owners = text.lines().filter(|line| is_owner(line)).count();
    let second = text.lines().skip(1).find(|line| !has_ids(line));
    ensure!(
        owners == 1 && second.is_some_and(is_owner),
        "the name of job {job} has a newline"
    );
    Ok(text)
}

/// Returns whether the line has identifiers, which Slurm prints before the user of a component of a
/// heterogeneous job, and since 26.05 of each job.
fn has_ids(line: &str) -> bool {
    let value = |key| line.strip_prefix(key);
    value("   HetJobIdSet=")
        .or_else(|| value("   SLUID="))
        .is_some_and(|text| {
            text.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b",-".contains(&byte))
        })
}

/// Returns the name, as `ARRAY_TASK` or `FIRST+OFFSET`, of a job whose record begins with this line; `None`
/// for another job, or one that is not part of several.
fn part_of_several(line: &str, job: u32) -> Option<String> {
    let (numbers, _) = line.split_once(" JobName=")?;
    let numbers = numbers.strip_prefix(&format!("JobId={job} "))?;
    let digits = |key| value(numbers, key).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let name = |first, second, between| Some(format!("{}{between}{}", digits(first)?, digits(second)?));
    name("ArrayJobId", "ArrayTaskId", '_').or_else(|| name("HetJobId", "HetJobOffset", '+'))
}

/// Returns the generic resources that a job was given on a node; empty if none.
///
/// # Errors
/// The controller does not answer, or does not know the job or the node; a text of the user looks like a line
/// about the node.
pub(crate) fn resources_of_job(program: &Path, job: u32, node: &str) -> anyhow::Result<String> {
    let text = self::job(program, job)?;
    // Other texts of the user than the name follow the job's command.
    let lines = text.lines().take_while(|line| !line.starts_with("   Command="));
    let mut found = None;
    for (nodes, resources) in lines.filter_map(given) {
        if is_in(program, node, nodes)? {
            let is_first = found.replace(resources.to_owned()).is_none();
            ensure!(
                is_first,
                "more than one line says what job {job} was given on {node}"
            );
        }
    }
    found.with_context(|| format!("the controller does not say what job {job} was given on {node}"))
}

/// Returns nodes and generic resources of a line about nodes of a job; `None` for another line.
fn given(line: &str) -> Option<(&str, &str)> {
    let line = line
        .strip_prefix("     ")
        .filter(|line| line.starts_with("Nodes="))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let [nodes, cpus, memory, resources] = words[..] else {
        return None;
    };
    cpus.strip_prefix("CPU_IDs=")?;
    memory.strip_prefix("Mem=")?;
    Some((nodes.strip_prefix("Nodes=")?, resources.strip_prefix("GRES=")?))
}

/// Returns the generic resources of a node.
///
/// # Errors
/// The controller does not answer.
pub(crate) fn resources_of_node(program: &Path, node: &str) -> anyhow::Result<String> {
    let text = scontrol(program, &["--oneliner", "show", "node", node])?;
    Ok(value(&text, "Gres").unwrap_or_default().to_owned())
}

/// Returns whether a node is in a list such as `n[1-3],m`.
fn is_in(program: &Path, node: &str, nodes: &str) -> anyhow::Result<bool> {
    if !nodes.contains(['[', ',']) {
        return Ok(nodes == node);
    }
    let names = scontrol(program, &["show", "hostnames", nodes])?;
    Ok(names.lines().any(|name| name == node))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Returns a directory with a program in place of `scontrol`.
    fn fake(script: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("scontrol");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        (directory, program)
    }

    const OWNER: &str = "   UserId=u(1) GroupId=g(1)\n";
    const GIVEN: &str =
        "     Nodes=a[1-2] CPU_IDs=0 Mem=0 GRES=shard:2(IDX:0)\n     Nodes=b CPU_IDs=0 Mem=0 GRES=\n";

    /// Returns `scontrol` with these texts for jobs.
    fn with_jobs(jobs: &[(&str, String)]) -> (tempfile::TempDir, std::path::PathBuf) {
        let (directory, program) =
            fake("case \"$*\" in *hostnames*) printf 'a1\\na2\\n' ;; *) cat \"${0%/*}/job-$4\" ;; esac");
        for (job, text) in jobs {
            fs::write(directory.path().join(format!("job-{job}")), text).unwrap();
        }
        (directory, program)
    }

    /// Returns the resources on a node of job 7 with this name.
    fn resources_of_named(name: &str, node: &str) -> anyhow::Result<String> {
        let text = format!("JobId=7 JobName={name}\n{OWNER}   JOB_GRES=shard:4\n{GIVEN}\n");
        let (_directory, program) = with_jobs(&[("7", text)]);
        resources_of_job(&program, 7, node)
    }

    #[test]
    fn resources_are_those_of_the_job_on_the_node() {
        assert_eq!(resources_of_named("x", "a2").unwrap(), "shard:2(IDX:0)");
        assert_eq!(resources_of_named("x", "b").unwrap(), "");
        assert!(resources_of_named("x", "c").is_err());
        let (_directory, program) = with_jobs(&[("8", format!("JobId=9 JobName=x\n{OWNER}{GIVEN}"))]);
        assert!(resources_of_job(&program, 8, "b").is_err());
    }

    #[test]
    fn name_of_a_job_forges_no_resources() {
        let line = "     Nodes=b CPU_IDs=0 Mem=0 GRES=shard:8(IDX:0)";
        assert_eq!(resources_of_named(line, "b").unwrap(), "");
        assert_eq!(resources_of_named("x Nodes=b GRES=shard:8", "b").unwrap(), "");
        for name in [
            format!("x\n{line}"),
            format!("x\n{OWNER}{line}"),
            format!("x\n{OWNER}\n\nJobId=7 JobName=y\n{OWNER}{line}"),
        ] {
            assert!(resources_of_named(&name, "b").is_err(), "{name}");
        }
    }

    #[test]
    fn lines_of_identifiers_may_precede_the_user() {
        for (ids, is_accepted) in [
            ("   SLUID=s1ZNM8DYGB7900", true),
            ("   HetJobIdSet=7-8\n   SLUID=s1", true),
            ("   SLUID=s1 GRES=shard:8", false),
            ("   Other=1", false),
        ] {
            let text = format!("JobId=7 JobName=x\n{ids}\n{OWNER}{GIVEN}");
            let (_directory, program) = with_jobs(&[("7", text)]);
            assert_eq!(resources_of_job(&program, 7, "a1").is_ok(), is_accepted, "{ids}");
        }
    }

    #[test]
    fn other_text_of_a_job_forges_no_resources() {
        let forged = "     Nodes=b CPU_IDs=0 Mem=0 GRES=shard:8(IDX:0)\n";
        let resources = |name: &str, before: &str| {
            let text = format!("JobId=7 JobName={name}\n{OWNER}{GIVEN}{before}{forged}");
            let (_directory, program) = with_jobs(&[("7", text)]);
            resources_of_job(&program, 7, "b").map_err(|error| error.to_string())
        };
        assert_eq!(
            resources("x", "   Command=/bin/x\n   SubmitLine=x\n").unwrap(),
            ""
        );
        let error = resources("x", "   Network=\n").unwrap_err();
        assert!(error.contains("more than one line"), "{error}");
        // A forged command that hides the lines of the controller.
        let name = format!("x\n{OWNER}{forged}   Command=");
        assert!(resources(&name, "").is_err());
    }

    #[test]
    fn field_is_that_of_the_job() {
        let answer = "case \"$*\" in *,new:*) printf '6 other  \\n7  two words  \\n' ;; *,none:*) echo '7 (null) ' ;; *) echo ;; esac";
        let (directory, _scontrol) = fake(answer);
        let scontrol = directory.path().join("scontrol");
        fs::rename(&scontrol, directory.path().join("squeue")).unwrap();
        assert_eq!(field(&scontrol, 7, &["old", "new"]).unwrap(), "two words");
        assert_eq!(field(&scontrol, 7, &["none"]).unwrap(), "");
        assert!(field(&scontrol, 7, &["old"]).is_err());
        assert!(field(&scontrol, 8, &["new"]).is_err());
    }

    #[test]
    fn job_of_an_array_is_asked_for_by_its_task() {
        let other = format!(
            "JobId=8 ArrayJobId=7 ArrayTaskId=1 JobName=x\n{OWNER}     Nodes=b CPU_IDs=0 Mem=0 GRES=gpu:1\n"
        );
        let own = format!("JobId=7 ArrayJobId=7 ArrayTaskId=2 JobName=x\n{OWNER}{GIVEN}");
        let (_directory, program) = with_jobs(&[("7", format!("{other}\n{own}\n")), ("7_2", own)]);
        assert_eq!(resources_of_job(&program, 7, "b").unwrap(), "");
        assert_eq!(
            part_of_several("JobId=7 HetJobId=7 HetJobOffset=0 JobName=x", 7).as_deref(),
            Some("7+0")
        );
        assert_eq!(
            part_of_several("JobId=7 JobName=x ArrayJobId=1 ArrayTaskId=2 JobName=", 7),
            None
        );
        // A name that leads to another job.
        let forged =
            format!("JobId=7 JobName=x\nJobId=7 ArrayJobId=7 ArrayTaskId=1 JobName=\n{OWNER}{GIVEN}");
        let (_directory, program) = with_jobs(&[("7", forged), ("7_1", other)]);
        assert!(resources_of_job(&program, 7, "b").is_err());
    }

    #[test]
    fn failure_of_the_controller_is_told() {
        let (_directory, program) = fake("echo 'Unable to contact controller' >&2; exit 1");
        let error = resources_of_node(&program, "a").unwrap_err().to_string();
        assert!(error.contains("Unable to contact controller"), "{error}");
    }
}
