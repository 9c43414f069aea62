//! The service that the kubelet calls, one for each resource.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use super::v1beta1::device_plugin_server::DevicePlugin;
use super::v1beta1::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, DeviceSpec, Empty,
    ListAndWatchResponse, Mount, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse,
};
use crate::cards::{Resource, preferred};
use crate::edits::Edits;

/// Ids of each resource, in the order of [`Resource::ALL`], and whether they are healthy.
pub(crate) type Devices = [Vec<(String, bool)>; 2];

/// Decides about the node's cards.
pub(crate) trait Node: Send + Sync + 'static {
    /// Gives ids to a container, and returns what the container needs.
    ///
    /// # Errors
    /// The ids cannot be given out now.
    fn allocate(
        self: Arc<Self>,
        resource: Resource,
        ids: Vec<String>,
    ) -> impl Future<Output = anyhow::Result<Edits>> + Send;

    /// Makes the limits of the pod hold that has these ids. Its container starts afterwards.
    ///
    /// # Errors
    /// They do not hold, so the container must not start.
    fn pre_start(
        self: Arc<Self>,
        resource: Resource,
        ids: Vec<String>,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Service of one resource.
#[derive(Debug)]
pub(super) struct Service<N> {
    pub(super) resource: Resource,
    pub(super) node: Arc<N>,
    pub(super) devices: watch::Receiver<Devices>,
}

/// Returns what the kubelet is told about the service at registration.
pub(super) fn options() -> DevicePluginOptions {
    DevicePluginOptions {
        pre_start_required: true,
        get_preferred_allocation_available: true,
    }
}

fn list(devices: &[(String, bool)]) -> ListAndWatchResponse {
    let device = |(id, is_healthy): &(String, bool)| Device {
        id: id.clone(),
        health: if *is_healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
        topology: None,
    };
    ListAndWatchResponse {
        devices: devices.iter().map(device).collect(),
    }
}

fn response(edits: Edits) -> ContainerAllocateResponse {
    let mount = |mount: crate::edits::Mount| Mount {
        read_only: mount.is_read_only(),
        host_path: mount.host_path,
        container_path: mount.container_path,
    };
    let device = |(host_path, container_path)| DeviceSpec {
        container_path,
        host_path,
        permissions: "rw".to_owned(),
    };
    ContainerAllocateResponse {
        envs: edits.environment.into_iter().collect(),
        mounts: edits.mounts.into_iter().map(mount).collect(),
        devices: edits.devices.into_iter().map(device).collect(),
        annotations: [].into(),
        cdi_devices: edits
            .cdi_names
            .into_iter()
            .map(|name| CdiDevice { name })
            .collect(),
    }
}

/// Logs a refusal, and returns it as the kubelet shows it in the pod's events.
fn refusal(what: &str, resource: Resource, error: &anyhow::Error) -> Status {
    eprintln!("gcgroup-kubelet-plugin: {what} {}: {error:#}", resource.name());
    Status::failed_precondition(format!("{error:#}"))
}

#[tonic::async_trait]
impl<N: Node> DevicePlugin for Service<N> {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let resource = self.resource;
        let lists = WatchStream::new(self.devices.clone()).map(move |devices| {
            let [units, cards] = &devices;
            Ok(list(match resource {
                Resource::Memory => units,
                Resource::Card => cards,
            }))
        });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let requests = request.into_inner().container_requests;
        let answer = |request: super::v1beta1::ContainerPreferredAllocationRequest| {
            let size = usize::try_from(request.allocation_size).unwrap_or_default();
            ContainerPreferredAllocationResponse {
                device_i_ds: preferred(
                    self.resource,
                    &request.available_device_i_ds,
                    &request.must_include_device_i_ds,
                    size,
                ),
            }
        };
        Ok(Response::new(PreferredAllocationResponse {
            container_responses: requests.into_iter().map(answer).collect(),
        }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let mut container_responses = Vec::new();
        for request in request.into_inner().container_requests {
            let node = Arc::clone(&self.node);
            let edits = node.allocate(self.resource, request.devices_i_ds).await;
            let edits = edits.map_err(|error| refusal("cannot allocate", self.resource, &error))?;
            container_responses.push(response(edits));
        }
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let ids = request.into_inner().devices_i_ds;
        let done = Arc::clone(&self.node).pre_start(self.resource, ids).await;
        done.map_err(|error| refusal("a container with", self.resource, &error))?;
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
