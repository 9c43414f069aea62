//! Tests programs of a job that a launcher starts, or that outlive their command.

use support::{Governed, Mount, wait_until};

use super::{Background, MIB, has, members, run_script};
use crate::driver::driver_shell;

#[test]
fn children_outlive_their_command_in_its_group() {
    let mount = Mount::new();
    let mut child = Background::new();
    let script = "(read line; exec \"$1\") < \"$2\" > \"$3\" 2>/dev/null & echo $GCGROUP_GROUP";
    let options = ["--name", "short", "--memory-limit", "1M"];
    let output = run_script(&mount, &options, script, &child)
        .output()
        .expect("the command starts");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "short\n");
    // The child has not used CUDA yet.
    wait_until("the job's group is removed", || !has(&mount, "short"));
    child.say("go");
    let pid = child.banner();
    assert_eq!(members(&mount, "short"), [pid]);
    assert_eq!(child.ask(&format!("alloc linear {}", MIB + 1)), "error 2");
    child.say("quit");
    wait_until("the job's group is removed", || !has(&mount, "short"));
}

/// Scripts that start the program $1, which loses its parent and waits for a line before it uses CUDA.
const LAUNCHERS: &[&str] = &[
    // Python closes all descriptors but the standard ones.
    "exec python3 -c 'import subprocess, sys; subprocess.Popen([\"sh\", \"-c\", \"read line; exec $0\", sys.argv[1]], \
     stdin=open(sys.argv[2]), stdout=open(sys.argv[3], \"w\"), stderr=subprocess.DEVNULL, start_new_session=True)' \
     \"$1\" \"$2\" \"$3\"",
    "setsid sh -c 'read line; exec \"$0\"' \"$1\" < \"$2\" > \"$3\" 2>/dev/null & exit",
    "(sh -c 'exec 3<&0; (read line; exec \"$0\") <&3 & exit' \"$1\" < \"$2\" > \"$3\" 2>/dev/null &) & exit",
    "ulimit -n 256; (read line; exec \"$1\") < \"$2\" > \"$3\" 2>/dev/null & exit",
    "(read line; env -i $(env | grep -E '^(LD_|GCGROUP_|SIMGPU)') \"$1\") < \"$2\" > \"$3\" 2>/dev/null & exit",
];

#[test]
fn workers_find_their_job_after_their_launcher() {
    for script in LAUNCHERS {
        let mut mount = Mount::new();
        let mut workers = [Background::new(), Background::new()];
        let mut main = Governed::spawn({
            let mut command =
                mount.gcgroupfs(&["run", "--memory-limit", "64M", "--compute-max", "90%", "--"]);
            let both = "echo $GCGROUP_GROUP; sh -c \"$0\" sh \"$1\" \"$2\" \"$3\"; sh -c \"$0\" sh \"$1\" \"$4\" \"$5\"";
            command.args(["sh", "-c", both, script]).arg(driver_shell());
            command.args(workers[0].pipes()).args(workers[1].pipes());
            command
        });
        let group = main.line().expect("the command runs");
        assert!(main.wait().success());
        wait_until("the job's group is removed", || !has(&mount, &group));
        mount.kill9();
        mount.restart();
        workers[0].say("go");
        let first = workers[0].banner();
        assert_eq!(members(&mount, &group), [first], "{script}");
        assert_eq!(mount.read(&group, "compute.max"), "90000 100000");
        workers[1].say("go");
        workers[1].banner();
        assert_eq!(members(&mount, &group).len(), 2, "{script}");
        assert_eq!(workers[0].ask(&format!("alloc linear {}", 40 * MIB)), "ok 0");
        assert_eq!(workers[1].ask(&format!("alloc linear {}", 40 * MIB)), "error 2");
        workers.iter_mut().for_each(|worker| worker.say("quit"));
        wait_until("the job's group is removed", || !has(&mount, &group));
    }
}

#[test]
fn worker_of_an_unknown_job_is_refused() {
    let mount = Mount::new();
    let start = |group: &str, job: &str, required: &str| {
        let mut command = mount.command(driver_shell());
        command.envs([
            ("GCGROUP_GROUP", group),
            ("GCGROUP_JOB", job),
            ("GCGROUP_REQUIRED", required),
        ]);
        let mut program = Governed::spawn(command);
        let banner = program.expect("ready");
        (banner.ends_with(" 802"), has(&mount, group))
    };
    assert_eq!(start("train", "train", "1"), (true, false));
    assert_eq!(start("train", "train", "0"), (false, false));
    assert_eq!(start("job-4711", "", "1"), (true, false));
    assert_eq!(start("job-4711", "train", "0"), (false, false));
    assert_eq!(
        start("train", "job-4711", "1"),
        (false, true),
        "not the job's group"
    );
}

#[test]
fn worker_that_makes_its_job_again_after_a_kill_is_killed() {
    // The kill is that of the job's group, or after its removal that of the group above.
    for is_early in [true, false] {
        let mount = Mount::new();
        std::fs::create_dir(mount.path().join("team")).expect("root may make groups");
        let mut worker = Background::new();
        let mut main = Governed::spawn({
            let mut command = mount.gcgroupfs(&["run", "--group", "team", "--memory-limit", "64M", "--"]);
            let both = "sh -c \"$0\" sh \"$1\" \"$2\" \"$3\"; echo $GCGROUP_GROUP; read line";
            command.args(["sh", "-c", both, LAUNCHERS[0]]).arg(driver_shell());
            command.args(worker.pipes());
            command
        });
        let group = main.line().expect("the command runs");
        let began = std::time::Instant::now();
        wait_until("the worker is older than two units of start times", || {
            began.elapsed().as_millis() > 20
        });
        let kill = |group: &str| mount.write(group, "gcgroup.kill", "1");
        if is_early {
            kill(&group);
        }
        main.say("");
        assert!(main.wait().success());
        wait_until("the job's group is removed", || !has(&mount, &group));
        if !is_early {
            kill("team");
        }
        worker.say("go");
        wait_until("the worker is killed", || {
            mount.log().contains("was killed: by gcgroup.kill")
        });
    }
}
