//! Tests threads that allocate and free through every API at once: afterwards the ledger matches the driver's
//! allocations and NVML's report.

use simgpu::Held;
use support::{Mount, Truth, artifacts, wait_until};

use crate::driver::Dir;
use crate::nvml::Nvml;

#[test]
fn ledger_matches_driver_after_churn() {
    let rounds = std::env::var("GCGROUP_CHURN_ROUNDS").unwrap_or_else(|_| "200".to_owned());
    churn(&["--rounds", &rounds]);
}

#[test]
fn ledger_matches_driver_with_more_threads_than_counters() {
    let threads = (gcgroup_abi::MAX_THREADS + 20).to_string();
    churn(&["--rounds", "3", "--size", "4K", "--threads", &threads]);
}

fn churn(arguments: &[&str]) {
    let mount = Mount::new();
    let mut command = mount.command(artifacts().load());
    command.arg("churn").args(arguments);
    let mut load = support::Governed::spawn(command);
    load.expect("ready");
    let (truth, dir, pid) = (
        Truth::of(&mount.simgpu_dir()),
        Dir::of(&mount, load.pid()),
        load.pid(),
    );
    let mut nvml = Nvml::bare(&mount);
    let mut agrees = || {
        let kinds = [
            ("linear", Held::Linear),
            ("managed", Held::Managed),
            ("array", Held::Array),
            ("vmm", Held::Physical),
            ("pool", Held::Pool),
        ];
        kinds
            .iter()
            .all(|(key, kind)| dir.key("memory.stat", key) == truth.held(pid, 0, *kind))
            && dir.number("memory.current") == truth.used(pid, 0)
            && nvml.computing(0).get(&pid) == Some(&dir.number("memory.current"))
            && dir.key("memory.stat", "host") == truth.held(pid, 0, Held::HostPinned)
    };
    load.expect("churned");
    assert!(dir.key("memory.stat", "linear") + dir.key("memory.stat", "vmm") > 0);
    wait_until("the charges equal what the process holds", &mut agrees);
    load.say("");
    load.expect("freed");
    wait_until("the charges equal what the process holds after the frees", agrees);
    assert_eq!(
        dir.key("memory.stat", "nr_alloc"),
        dir.key("memory.stat", "nr_free")
    );
}
