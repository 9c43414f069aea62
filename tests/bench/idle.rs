//! Time from the submission of a process that has left the GPU (`gcgroup.idle`) until it returns, against
//! that of the copies of its memory. Twenty programs each take the whole device, of 280 MiB with copies
//! of 1 GB/s, and are used in turn; contents are verified.

use serde_json::json;
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::files::monotonic;
use crate::report::{Report, quantile};

const TOTAL: u64 = 280 << 20;
const BYTES: u64 = TOTAL * 7 / 8;
const BLOCK: u64 = 35 << 20;
/// Bytes a second. They are few, so that the copies and not the simulation take most of the time.
const BANDWIDTH: u64 = 1_000_000_000;
const PROGRAMS: usize = 20;

pub(crate) fn run(report: &mut Report) {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_MEMORY", TOTAL)
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_KEPT", TOTAL)
            .env("SIMGPU_HOST_BANDWIDTH", BANDWIDTH),
    );
    std::fs::create_dir(mount.path().join("models")).expect("root may create groups");
    mount.write("models", "gcgroup.idle", "1 reclaim");
    let mut programs = Vec::new();
    for _ in 0..PROGRAMS {
        let program = program(&mount);
        mount.write("models", "gcgroup.procs", &program.pid().to_string());
        wait_until_away(&mount, &program);
        programs.push(program);
    }
    let mut took = Vec::new();
    for program in &mut programs {
        let before = monotonic();
        let answer = program.ask("stamp");
        let after: f64 = answer
            .trim_start_matches("stamped ")
            .parse()
            .expect("a time stamp");
        took.push((after - before) / 1e9);
        assert_eq!(
            mount.number(program.pid(), "memory.swap.current", ""),
            0,
            "all of it was back before the kernel"
        );
        assert_eq!(program.ask("verify"), format!("verified {}", BYTES / BLOCK));
        wait_until_away(&mount, program);
    }
    let copies = BYTES as f64 / BANDWIDTH as f64;
    let worst = quantile(took.clone(), 1.0) / copies;
    let detail = json!({ "seconds": took, "copies": copies });
    report.add(
        "idle: first kernel after the return",
        worst,
        "times the copies",
        1.2,
        detail,
    );
}

fn program(mount: &Mount) -> Governed {
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    for _ in 0..BYTES / BLOCK {
        let answer = program.ask(&format!("alloc linear {BLOCK}"));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    program
}

fn wait_until_away(mount: &Mount, program: &Governed) {
    wait_until("the process has left", || {
        mount.number(program.pid(), "gcgroup.events", "away") == 1
            && mount.number(program.pid(), "memory.current", "") == 0
    });
}
