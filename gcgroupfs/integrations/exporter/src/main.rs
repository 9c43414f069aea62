//! Shows the state of the gcgroupfs daemon as metrics and as a web page. Reads the daemon's socket, and needs
//! no privileges.

mod accept;
mod clients;
mod history;
mod metrics;
mod owner;
mod page;
mod pods;
mod sampler;
mod snapshot;
mod textfile;
mod waits;
mod web;

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::Parser;
use gcgroup_abi::DEFAULT_SOCKET;
use gcgroup_abi::environment::GCGROUP_SOCKET;

use crate::sampler::Sampler;
use crate::snapshot::Caps;
use crate::web::{Listener, Site};

/// Length of the shortest token, bytes.
const SHORTEST_TOKEN: usize = 16;

/// Metrics and a web page of GPUs, governed processes and groups
#[derive(Debug, Parser)]
#[command(name = "gcgroup-exporter", version)]
struct Cli {
    /// The daemon's socket
    #[arg(long, value_name = "PATH", env = GCGROUP_SOCKET.name, default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Listen at ADDRESS:PORT or unix:PATH: the page at /, metrics at /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9836")]
    listen: String,
    /// Write the metrics to FILE once and exit, for node_exporter's textfile collector
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "token_file", "host"])]
    textfile: Option<PathBuf>,
    /// Permit freezing and thawing with the token in FILE, with the permissions of this process
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Accept requests to this name, beside localhost and addresses (repeatable)
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Name pods and containers by FILE, which gcgroup-kubelet-plugin --report writes
    #[arg(long, value_name = "FILE")]
    pods: Option<PathBuf>,
    /// Show at most N processes: those that hold most memory
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_processes: usize,
    /// Show at most N groups: first those with processes
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_groups: usize,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gcgroup-exporter: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let caps = Caps {
        processes: cli.max_processes,
        groups: cli.max_groups,
    };
    let sampler = Arc::new(Sampler::new(&cli.socket, caps, cli.pods.as_deref()));
    if let Some(file) = &cli.textfile {
        return textfile::write(file, &sampler);
    }
    let token = cli.token_file.as_deref().map(token).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()?;
    runtime.block_on(async {
        let listener = Listener::bind(&cli.listen).await?;
        let site = Site {
            sampler: Arc::clone(&sampler),
            token,
            hosts: cli.host.clone(),
            checks_host: matches!(listener, Listener::Tcp(_)),
        };
        sampler.watch();
        eprintln!("gcgroup-exporter: ready: {}", listener.name());
        web::serve(listener, Arc::new(site)).await;
        Ok(())
    })
}

/// Reads a token that other users cannot read.
///
/// # Errors
/// The file cannot be read, others can read it, or the token is too short.
fn token(path: &Path) -> anyhow::Result<String> {
    let name = path.display();
    let mut file = std::fs::File::open(path).with_context(|| format!("cannot open {name}"))?;
    let mode = file
        .metadata()
        .with_context(|| format!("cannot read {name}"))?
        .mode();
    ensure!(
        mode & 0o077 == 0,
        "{name} must not be accessible to others: chmod 600"
    );
    let mut text = String::new();
    file.by_ref()
        .take(4096)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read {name}"))?;
    let token = text.trim();
    ensure!(
        token.len() >= SHORTEST_TOKEN && token.bytes().all(|byte| byte.is_ascii_graphic()),
        "the token in {name} must have {SHORTEST_TOKEN} or more printable ASCII characters, without blanks"
    );
    Ok(token.to_owned())
}
