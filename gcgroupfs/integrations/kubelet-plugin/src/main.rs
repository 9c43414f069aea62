//! Device plugin of the kubelet: offers memory of GPUs in units of 1 GiB, and whole cards. Tells the daemon
//! of gcgroupfs what each pod has been given, and the daemon enforces it for all processes of the pod.
//!
//! `daemon` and `policy` talk to the daemon, `kubelet` to the kubelet and the API server; `node` joins them.
//! See README.md of this crate, also for a design with dynamic resource allocation.

mod activity;
mod cards;
mod daemon;
mod edits;
mod kubelet;
mod node;
mod policy;
mod processes;
mod report;
mod warnings;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use gcgroup_abi::DEFAULT_SOCKET;
use gcgroup_abi::environment::GCGROUP_SOCKET;
use hyper::Uri;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use crate::cards::Card;
use crate::daemon::Daemon;
use crate::edits::Templates;
use crate::kubelet::PodSource;
use crate::node::{PluginNode, Setup};

/// Interval between refreshes, and between attempts to reach the daemon at the start.
const INTERVAL: Duration = Duration::from_secs(1);

/// Kubernetes device plugin for shares of GPUs that gcgroupfs enforces
#[derive(Debug, Parser)]
#[command(name = "gcgroup-kubelet-plugin", version)]
struct Cli {
    /// The daemon's socket
    #[arg(long, value_name = "PATH", env = GCGROUP_SOCKET.name, default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// The kubelet's directory of device plugins
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/device-plugins")]
    plugins: PathBuf,
    /// The specification that `gcgroupfs cdi` prints on the node: what containers get
    #[arg(long, value_name = "FILE", default_value = "/etc/cdi/gcgroupfs.json")]
    hook: PathBuf,
    /// Set a variable in containers; {uuid}, {index} and {minor} stand for values of their cards (repeatable)
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Give containers a device file, once for each card: /dev/nvidia{minor} (repeatable)
    #[arg(long, value_name = "HOST[:CONTAINER]")]
    device: Vec<String>,
    /// Give containers a CDI device, once for each card: nvidia.com/gpu={uuid} (repeatable)
    #[arg(long, value_name = "NAME")]
    cdi: Vec<String>,
    /// List the node's pods there: the API server, or the kubelet's read-only port
    #[arg(long, value_name = "URL")]
    pods: Option<Uri>,
    /// Certificates of the authority of that server, PEM
    #[arg(long, value_name = "FILE", requires = "pods")]
    ca_file: Option<PathBuf>,
    /// Bearer token for that server; read at each request
    #[arg(long, value_name = "FILE", requires = "pods")]
    token_file: Option<PathBuf>,
    /// Highest priority that annotations of pods may ask for: 0 is the highest, 15 the lowest
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u8).range(..=15))]
    highest_priority: u8,
    /// Write names of pods, and containers without devices, to FILE as JSON, for gcgroup-exporter --pods
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gcgroup-kubelet-plugin: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let pods = cli
        .pods
        .map(|uri| PodSource::new(uri, cli.ca_file.as_deref(), cli.token_file.as_deref()));
    let setup = Setup {
        directory: cli.plugins,
        socket: cli.socket,
        templates: Templates {
            hook: cli.hook,
            environment: cli.env,
            devices: cli.device,
            cdi: cli.cdi,
        },
        pods: pods.transpose()?,
        highest_priority: cli.highest_priority,
        report: cli.report,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()?;
    runtime.block_on(async {
        let mut end = signal(SignalKind::terminate()).context("cannot wait for signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
        tokio::select! {
            () = work(setup) => {}
            _ = end.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}

/// Serves the kubelet and refreshes what is known, forever.
async fn work(setup: Setup) {
    let cards = wait_for_cards(&Daemon::new(&setup.socket)).await;
    let directory = setup.directory.clone();
    let node = Arc::new(PluginNode::new(setup, cards));
    // Before registration, so that the first list has what other pods use.
    node.refresh().await;
    let devices = node.devices();
    let refreshing = async {
        loop {
            sleep(INTERVAL).await;
            node.refresh().await;
        }
    };
    tokio::select! {
        () = kubelet::serve(&directory, &node, &devices) => {}
        () = refreshing => {}
    }
}

/// Returns the daemon's cards as soon as it answers and has some.
async fn wait_for_cards(daemon: &Daemon) -> Vec<Card> {
    let mut complaint = String::new();
    loop {
        let problem = match daemon.cards() {
            Ok(cards) if cards.is_empty() => "the daemon has no GPUs".to_owned(),
            Ok(cards) => return cards,
            Err(error) => format!("{error:#}"),
        };
        if problem != complaint {
            eprintln!("gcgroup-kubelet-plugin: waiting: {problem}");
            complaint = problem;
        }
        sleep(INTERVAL).await;
    }
}
