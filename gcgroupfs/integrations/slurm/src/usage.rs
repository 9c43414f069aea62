//! GPU time and peak memory of a step, for the job's accounting data.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::arguments::Arguments;
use crate::controller::{self, scontrol};
use crate::daemon::Client;
use crate::spank;
use crate::step::Step;

/// Pause between two reads. After a read the GPU time of registered processes is measured for 10 s. Under a
/// quota it is always measured.
const PAUSE: Duration = Duration::from_secs(1);

/// File that is locked while a comment changes.
const LOCK: &str = "/run/gcgroup-slurm.lock";

/// Longest wait of a script's step for other steps of its job, and the pause between two looks.
const STEPS: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

/// Attempts to add to the comment of a job, to which other nodes may be adding.
const ATTEMPTS: u32 = 5;

/// GPU time and memory that the processes of a step have used on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Usage {
    gpu_usec: u64,
    /// Bytes.
    peak: u64,
}

/// Starts a thread that keeps the daemon measuring the GPU time of the step.
pub(crate) fn measure(arguments: &Arguments, step: &Step) {
    let (socket, group) = (arguments.socket.clone(), step.group.clone());
    let run = move || {
        loop {
            // Without a daemon nothing can be measured; the next one may answer.
            let _ = Client::connect(&socket).and_then(|mut client| read(&mut client, &group));
            thread::sleep(PAUSE);
        }
    };
    let thread = thread::Builder::new().name("gcgroup-usage".to_owned());
    if let Err(error) = thread.spawn(run) {
        spank::log_error(&format!("GPU time is not measured: {error}"));
    }
}

/// Stores what a step that has ended has used; nothing if it has used no GPU.
///
/// # Errors
/// The daemon or the controller does not answer, or the job has ended already.
pub(crate) fn store(arguments: &Arguments, step: &Step) -> anyhow::Result<()> {
    if !arguments.usage && arguments.usage_log.is_none() {
        return Ok(());
    }
    let mut client = Client::connect_patiently(&arguments.socket)?;
    let usage = read(&mut client, &step.group)?;
    if arguments.usage && step.is_batch() {
        wait_for_steps(&mut client, step);
    }
    if usage.gpu_usec == 0 && usage.peak == 0 {
        return Ok(());
    }
    if let Some(path) = &arguments.usage_log {
        append(path, &line(step, usage))?;
    }
    if arguments.usage {
        add_to_comment(
            &arguments.scontrol,
            Path::new(LOCK),
            step.job,
            &comment(step, usage),
        )?;
    }
    Ok(())
}

/// Waits until the job's steps on this node whose processes have ended are gone. They store their use too,
/// and Slurm kills them, and takes no comment, once the step of the job's script has ended.
fn wait_for_steps(client: &mut Client, step: &Step) {
    let deadline = Instant::now() + STEPS;
    while client.is_one_ended_beside(&step.group).unwrap_or(false) && Instant::now() < deadline {
        thread::sleep(LOOK);
    }
}

fn read(client: &mut Client, group: &str) -> anyhow::Result<Usage> {
    let stat = client.get(&format!("{group}/compute.stat"))?;
    let mut lines = stat.lines();
    let gpu_usec = lines.find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok());
    Ok(Usage {
        gpu_usec: gpu_usec.context("compute.stat has no usage_usec")?,
        peak: client.get(&format!("{group}/memory.peak"))?.trim().parse()?,
    })
}

/// Returns the part of the job's comment: without a blank, so that `scontrol` takes it as one value.
fn comment(step: &Step, usage: Usage) -> String {
    format!(
        "gcgroup:{}.{}:gpu_seconds={},gpu_memory_peak={}",
        step.node,
        step.name,
        seconds(usage.gpu_usec),
        usage.peak
    )
}

/// Returns the line of the log, as JSON. Names of nodes and steps have no characters that JSON escapes.
fn line(step: &Step, usage: Usage) -> String {
    format!(
        "{{\"job\":{},\"step\":\"{}\",\"node\":\"{}\",\"gpu_seconds\":{},\"gpu_memory_peak\":{}}}\n",
        step.job,
        step.name,
        step.node,
        seconds(usage.gpu_usec),
        usage.peak
    )
}

fn seconds(usec: u64) -> String {
    format!("{}.{:03}", usec / 1_000_000, usec / 1000 % 1000)
}

/// Appends a line with one write, so that lines of several steps do not mix.
fn append(path: &Path, line: &str) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    let file = options.append(true).create(true).open(path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.with_context(|| path.display().to_string())
}

/// Adds a part to the job's `AdminComment`. Slurm can only replace it, so the part is added again if another
/// node has replaced it meanwhile.
fn add_to_comment(program: &Path, lock: &Path, job: u32, part: &str) -> anyhow::Result<()> {
    // Against other steps of this node. The holder runs scontrol, which takes at most 10 s each time.
    let lock = File::create(lock).with_context(|| lock.display().to_string())?;
    lock.lock()?;
    // The number of an array is also that of one of its jobs.
    let name = controller::field(program, job, &["JobArrayID"])?;
    let update = |comment: &str| {
        let setting = format!("AdminComment={comment}");
        scontrol(program, &["update", &format!("JobId={name}"), &setting])
    };
    for _ in 0..ATTEMPTS {
        let before = controller::field(program, job, &["admin_comment", "AdminComment"])?;
        if before.split(';').any(|other| other == part) {
            return Ok(());
        }
        let separator = if before.is_empty() { "" } else { ";" };
        update(&format!("{before}{separator}{part}"))?;
    }
    bail!("other nodes replace the comment of job {job}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn parts_are_added_to_the_comment() {
        let directory = tempfile::tempdir().unwrap();
        let (program, state) = (directory.path().join("scontrol"), directory.path().join("state"));
        let state_of =
            |script: &str| format!("#!/bin/sh\n{script}\n").replace("STATE", &state.to_string_lossy());
        for (name, script) in [
            (
                "scontrol",
                "[ \"$2\" = JobId=5_2 ] && echo \"${3#AdminComment=}\" > STATE",
            ),
            (
                "squeue",
                "case \"$*\" in *JobArrayID*) echo '7 5_2 ' ;; *) echo \"7    $(cat STATE)   \" ;; esac",
            ),
        ] {
            let program = directory.path().join(name);
            fs::write(&program, state_of(script)).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(&state, "two words\n").unwrap();
        for part in ["a=1", "b=2", "a=1"] {
            add_to_comment(&program, &directory.path().join("lock"), 7, part).unwrap();
        }
        assert_eq!(fs::read_to_string(&state).unwrap(), "two words;a=1;b=2\n");
    }

    #[test]
    fn seconds_have_three_digits() {
        assert_eq!(seconds(12_034_567), "12.034");
        assert_eq!(seconds(999), "0.000");
    }
}
