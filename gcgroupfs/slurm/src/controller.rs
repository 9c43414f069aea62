//! Questions to Slurm's controller, through `scontrol`: what a job was given must not come from its
//! environment.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Longest wait for the controller, seconds.
const PATIENCE: &str = "10";

/// Runs `scontrol` and returns what it prints.
///
/// # Errors
/// It fails, or takes longer than 10 s.
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
pub(crate) fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let mut words = line.split_whitespace();
    words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// Returns the generic resources that a job was given on a node; empty if none.
///
/// # Errors
/// The controller does not answer, or does not know the job or the node.
pub(crate) fn resources_of_job(program: &Path, job: u32, node: &str) -> anyhow::Result<String> {
    let text = scontrol(program, &["--details", "show", "job", &job.to_string()])?;
    let number = job.to_string();
    let of_job = text
        .split("\n\n")
        .find(|record| value(record, "JobId") == Some(number.as_str()))
        .with_context(|| format!("the controller does not know job {job}"))?;
    for line in of_job.lines() {
        let Some(nodes) = value(line, "Nodes") else {
            continue;
        };
        if is_in(program, node, nodes)? {
            return Ok(value(line, "GRES").unwrap_or_default().to_owned());
        }
    }
    bail!("the controller does not say what job {job} was given on {node}")
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

    #[test]
    fn resources_are_those_of_the_job_on_the_node() {
        let script = r#"
case "$*" in
    *hostnames*) printf 'a1\na2\n' ;;
    *) printf 'JobId=6 JobName=x\n   Nodes=b GRES=shard:9(IDX:0)\n\n'
       printf 'JobId=7 JobName=Nodes\n   JOB_GRES=shard:4\n     Nodes=a[1-2] CPU_IDs=0 Mem=0 GRES=shard:2(IDX:0)\n'
       printf '     Nodes=b CPU_IDs=0 Mem=0 GRES=\n\n' ;;
esac"#;
        let (_directory, program) = fake(script);
        assert_eq!(resources_of_job(&program, 7, "a2").unwrap(), "shard:2(IDX:0)");
        assert_eq!(resources_of_job(&program, 7, "b").unwrap(), "");
        assert!(resources_of_job(&program, 7, "c").is_err());
        assert!(resources_of_job(&program, 8, "b").is_err());
    }

    #[test]
    fn failure_of_the_controller_is_told() {
        let (_directory, program) = fake("echo 'Unable to contact controller' >&2; exit 1");
        let error = resources_of_node(&program, "a").unwrap_err().to_string();
        assert!(error.contains("Unable to contact controller"), "{error}");
    }
}
