//! Registers the resources with the kubelet, and again whenever the kubelet has restarted.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server};

use super::service::{Devices, Node, Service, options};
use super::v1beta1::RegisterRequest;
use super::v1beta1::device_plugin_server::DevicePluginServer;
use super::v1beta1::registration_client::RegistrationClient;
use crate::cards::Resource;

/// Version of the API.
const VERSION: &str = "v1beta1";

/// Interval between checks of the kubelet's socket, and between attempts.
const LOOK: Duration = Duration::from_secs(1);

/// Longest wait for the kubelet's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Name of the kubelet's socket in the directory of device plugins.
const KUBELET: &str = "kubelet.sock";

/// Name of a resource's socket.
const fn endpoint(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => "gcgroup-gpu-memory.sock",
        Resource::Card => "gcgroup-gpu.sock",
    }
}

/// Device, inode and ctime of a file: a new file may get the inode of the old one.
type FileId = (u64, u64, i64, i64);

fn id(path: &Path) -> io::Result<FileId> {
    let file = fs::metadata(path)?;
    Ok((file.dev(), file.ino(), file.ctime(), file.ctime_nsec()))
}

/// Serves the kubelet for as long as the process lives. A kubelet that starts empties its directory of
/// sockets, ours included: then all is made anew.
pub(crate) async fn serve<N: Node>(directory: &Path, node: &Arc<N>, devices: &watch::Receiver<Devices>) {
    let mut complaint = String::new();
    loop {
        match session(directory, node, devices).await {
            Ok(()) => complaint.clear(),
            Err(error) => {
                let error = format!("{error:#}");
                if error != complaint {
                    eprintln!("gcgroup-kubelet-plugin: not registered: {error}");
                    complaint = error;
                }
            }
        }
        sleep(LOOK).await;
    }
}

/// Serves and registers all resources, and returns when the kubelet has restarted or a socket is gone.
async fn session<N: Node>(
    directory: &Path,
    node: &Arc<N>,
    devices: &watch::Receiver<Devices>,
) -> anyhow::Result<()> {
    let kubelet = directory.join(KUBELET);
    let known = id(&kubelet).with_context(|| format!("no kubelet at {}", kubelet.display()))?;
    // Dropped with this future's end: the services end with it.
    let mut servers = JoinSet::new();
    let mut sockets = Vec::new();
    for resource in Resource::ALL {
        let path = directory.join(endpoint(resource));
        let service = Service {
            resource,
            node: Arc::clone(node),
            devices: devices.clone(),
        };
        sockets.push((path.clone(), listen(&path, service, &mut servers)?));
    }
    for resource in Resource::ALL {
        timeout(PATIENCE, register(&kubelet, resource))
            .await
            .with_context(|| format!("the kubelet does not answer within {} s", PATIENCE.as_secs()))??;
    }
    eprintln!("gcgroup-kubelet-plugin: registered");
    loop {
        sleep(LOOK).await;
        let is_same = |(path, known): &(PathBuf, FileId)| id(path).is_ok_and(|id| id == *known);
        if !is_same(&(kubelet.clone(), known)) || !sockets.iter().all(is_same) {
            eprintln!("gcgroup-kubelet-plugin: the kubelet has restarted");
            return Ok(());
        }
        if let Some(ended) = servers.try_join_next() {
            return ended?.context("a service has ended");
        }
    }
}

/// Listens at a path and serves there. Returns the identity of the socket's file.
fn listen<N: Node>(
    path: &Path,
    service: Service<N>,
    servers: &mut JoinSet<Result<(), tonic::transport::Error>>,
) -> anyhow::Result<FileId> {
    let name = path.display();
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {name}"));
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {name}"))?;
    fs::set_permissions(path, Permissions::from_mode(0o600))
        .with_context(|| format!("cannot protect {name}"))?;
    let file = id(path).with_context(|| format!("{name} is gone"))?;
    let server = Server::builder().add_service(DevicePluginServer::new(service));
    servers.spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    Ok(file)
}

async fn register(kubelet: &Path, resource: Resource) -> anyhow::Result<()> {
    let address = format!("unix://{}", kubelet.display());
    let channel = Endpoint::from_shared(address)?
        .connect()
        .await
        .with_context(|| format!("cannot connect to {}", kubelet.display()))?;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: endpoint(resource).to_owned(),
        resource_name: resource.name().to_owned(),
        options: Some(options()),
    };
    let answer = RegistrationClient::new(channel).register(request).await;
    answer
        .map(drop)
        .with_context(|| format!("the kubelet refuses {}", resource.name()))
}

#[cfg(test)]
mod tests;
