//! Tests gcgroup-load on the simulated driver, governed and not.

use std::process::{Command, Output};

use serde_json::Value;
use support::{Config, Mount, artifacts};

fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

/// Returns the lines before the last one, and the JSON of the last one.
#[track_caller]
fn told(output: &Output) -> (Vec<String>, Value) {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let last = lines.pop().unwrap();
    (lines, serde_json::from_str(&last).unwrap())
}

const APIS: [&str; 8] = [
    "linear", "pitched", "managed", "async", "pool", "vmm", "array", "host",
];

#[test]
fn memory_of_every_api_is_written_and_verified() {
    let mount = Mount::new();
    for governed in [false, true] {
        for api in APIS {
            let load = artifacts().load();
            let mut command = if governed {
                mount.command(load)
            } else {
                mount.bare_command(load)
            };
            // No granularity divides these sizes, so the last block has another size.
            command.args([
                "memory", "--api", api, "--size", "300001", "--total", "1000000", "--hold", "0",
            ]);
            let (lines, result) = told(&run(&mut command));
            assert!(
                lines.iter().any(|line| line.starts_with("verified ")),
                "{api}: {lines:?}"
            );
            assert!(result["bytes"].as_u64() >= Some(1_000_000), "{api}: {result}");
            assert_eq!(result["refused"], Value::Null, "{api}");
        }
    }
}

#[test]
fn memory_workload_allocates_until_refused() {
    let mount = Mount::with(Config::default().env("SIMGPU_MEMORY", 512 << 20));
    let mut command = mount.bare_command(artifacts().load());
    command.args(["memory", "--size", "16M", "--hold", "0", "--touch", "64K"]);
    let (lines, result) = told(&run(&mut command));
    assert_eq!(result["refused"], "CUDA_ERROR_OUT_OF_MEMORY");
    let bytes = result["bytes"].as_u64().unwrap();
    assert!(0 < bytes && bytes <= 512 << 20, "{bytes}");
    let refused = format!("refused CUDA_ERROR_OUT_OF_MEMORY at {bytes} bytes");
    assert!(lines.contains(&refused), "{lines:?}");
}

#[test]
fn racing_threads_allocate_exactly_the_gpu_memory() {
    let mount = Mount::with(Config::default().env("SIMGPU_MEMORY", 512 << 20));
    let mut command = mount.bare_command(artifacts().load());
    command.args([
        "memory",
        "--size",
        "4M",
        "--threads",
        "8",
        "--hold",
        "0",
        "--touch",
        "4K",
    ]);
    let (_, result) = told(&run(&mut command));
    assert_eq!(result["refused"], "CUDA_ERROR_OUT_OF_MEMORY");
    assert!(result["bytes"].as_u64() <= Some(512 << 20), "{result}");
}

#[test]
fn bursts_take_at_least_their_kernels_time() {
    let mount = Mount::new();
    let mut command = mount.bare_command(artifacts().load());
    command.args([
        "latency",
        "--count",
        "10",
        "--burst",
        "3",
        "--kernel-usec",
        "100",
        "--gap-ms",
        "0.1",
    ]);
    let (_, result) = told(&run(&mut command));
    assert_eq!(result["bursts"], 10);
    let [p50, p99, max] = ["p50_usec", "p99_usec", "max_usec"].map(|key| result[key].as_f64().unwrap());
    assert!(300.0 <= p50 && p50 <= p99 && p99 <= max, "{result}");
}

#[test]
fn throughput_reports_its_launches() {
    let mount = Mount::new();
    let mut command = mount.command(artifacts().load());
    command.args(["throughput", "--duration", "0.2", "--kernel-usec", "100"]);
    let (lines, result) = told(&run(&mut command));
    let pid = lines[0].strip_prefix("pid ").unwrap();
    let kernels = result["kernels"].as_u64().unwrap();
    assert!(kernels > 0);
    // The warm-up adds one launch.
    let counted = format!("nr_launches={}", kernels + 1);
    support::wait_until("the process is listed in exited", || {
        let exited = mount.read(".", "exited");
        let line = exited
            .lines()
            .find(|line| line.split(' ').next() == Some(pid))
            .map(str::to_owned);
        line.inspect(|line| assert!(line.contains(&counted), "{counted}: {line}"))
            .is_some()
    });
}

#[test]
fn delayed_burst_delays_the_bursts_behind_it() {
    let mount = Mount::new();
    let mut load = mount.load(&[
        "latency",
        "--burst",
        "1",
        "--kernel-usec",
        "10",
        "--gap-ms",
        "1",
        "--gaps",
        "fixed",
        "--count",
        "1000",
        "--trace",
    ]);
    load.expect("burst 20 ");
    mount.write(load.pid(), "compute.freeze", "1");
    let frozen = std::time::Instant::now();
    support::wait_until("a burst waits at the gate", || {
        mount.number(load.pid(), "compute.stat", "nr_frozen") > 0
            && frozen.elapsed() > std::time::Duration::from_millis(100)
    });
    let held = frozen.elapsed().as_secs_f64() * 1e6;
    mount.write(load.pid(), "compute.freeze", "0");
    let lines = load.finish();
    let late = |line: &&String| {
        let usec = line.split(' ').nth(2).and_then(|usec| usec.parse::<f64>().ok());
        line.starts_with("burst ") && usec.is_some_and(|usec| usec > held / 2.0)
    };
    assert!(
        lines.iter().filter(late).count() > 10,
        "the delayed bursts do not show their delay: {lines:?}"
    );
}

#[test]
fn burst_has_requested_time_and_kernels() {
    let mount = Mount::new();
    for graph in [false, true] {
        let mut command = mount.command(artifacts().load());
        command.args([
            "latency",
            "--kernel",
            "work",
            "--burst",
            "10-20",
            "--burst-ms",
            "2",
            "--prefill-ms",
            "4",
            "--gap-ms",
            "0.1",
            "--count",
            "5",
            "--streams",
            "3",
        ]);
        command.args(graph.then_some("--graph"));
        let (_, result) = told(&run(&mut command));
        assert_eq!(result["bursts"], 5);
        assert_eq!(result["busy_usec"], 4000 + 5 * 2000);
        assert!(result["prefill_usec"].as_f64() > Some(3000.0), "{result}");
        assert!(result["p50_usec"].as_f64() > Some(1000.0), "{result}");
    }
}

#[test]
fn graphs_of_kernels_go_through_several_streams() {
    let mount = Mount::new();
    let mut command = mount.command(artifacts().load());
    command.args([
        "throughput",
        "--kernel-usec",
        "10-50",
        "--graph",
        "7",
        "--streams",
        "3",
        "--duration",
        "0.1",
        "--interval",
        "0.02",
    ]);
    let (lines, result) = told(&run(&mut command));
    let kernels = result["kernels"].as_u64().unwrap();
    assert!(kernels > 0 && kernels.is_multiple_of(7), "{result}");
    // Kernel times in microseconds: 10, 20, 30, 40, 50, 10, 20.
    assert_eq!(result["busy_usec"].as_u64(), Some(kernels / 7 * 180));
    assert!(lines.iter().any(|line| line.starts_with("kernels ")), "{lines:?}");
}

#[test]
fn load_reports_a_missing_driver() {
    let mut command = Command::new(artifacts().load());
    command.args(["--library", "libcuda-that-is-not-there.so", "launches", "1"]);
    let output = run(&mut command);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no CUDA driver"),
        "{output:?}"
    );
}
