//! A kubelet in this process, over real sockets.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::*;
use crate::edits::Edits;
use crate::kubelet::v1beta1::device_plugin_client::DevicePluginClient;
use crate::kubelet::v1beta1::registration_server::{Registration, RegistrationServer};
use crate::kubelet::v1beta1::{AllocateRequest, ContainerAllocateRequest, Empty, PreStartContainerRequest};

/// Node whose ids `bad` are refused.
struct Ids;

impl Node for Ids {
    async fn allocate(self: Arc<Self>, _: Resource, ids: Vec<String>) -> anyhow::Result<Edits> {
        anyhow::ensure!(ids != ["bad"], "these ids are bad");
        Ok(Edits {
            cdi_names: ids,
            ..Edits::default()
        })
    }

    async fn pre_start(self: Arc<Self>, _: Resource, ids: Vec<String>) -> anyhow::Result<()> {
        anyhow::ensure!(ids != ["bad"], "no group");
        Ok(())
    }
}

struct Kubelet(mpsc::UnboundedSender<RegisterRequest>);

#[tonic::async_trait]
impl Registration for Kubelet {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let _ = self.0.send(request.into_inner());
        Ok(Response::new(Empty {}))
    }
}

/// Starts a kubelet, which first empties its directory.
fn kubelet(directory: &Path, registered: &mpsc::UnboundedSender<RegisterRequest>) -> JoinSet<()> {
    for entry in fs::read_dir(directory).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let listener = UnixListener::bind(directory.join(KUBELET)).unwrap();
    let service = RegistrationServer::new(Kubelet(registered.clone()));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let server = Server::builder().add_service(service);
        server
            .serve_with_incoming(UnixListenerStream::new(listener))
            .await
            .unwrap();
    });
    tasks
}

async fn connect(directory: &Path, endpoint: &str) -> DevicePluginClient<Channel> {
    let address = format!("unix://{}", directory.join(endpoint).display());
    let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    DevicePluginClient::new(channel)
}

fn devices(is_healthy: bool) -> Devices {
    [vec![("G.0".to_owned(), is_healthy)], vec![("G".to_owned(), true)]]
}

#[tokio::test]
async fn resources_are_served_and_registered_again_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let (sender, mut requests) = mpsc::unbounded_channel();
    let (changes, list) = watch::channel(devices(true));
    let mut served = JoinSet::new();
    {
        let path = path.clone();
        served.spawn(async move { serve(&path, &Arc::new(Ids), &list).await });
    }
    for _ in 0..2 {
        let kubelet = kubelet(&path, &sender);
        let mut endpoints = Vec::new();
        for resource in Resource::ALL {
            let request = requests.recv().await.unwrap();
            assert_eq!(request.resource_name, resource.name());
            assert!(request.options.is_some_and(|options| options.pre_start_required));
            endpoints.push(request.endpoint);
        }
        let mut memory = connect(&path, &endpoints[0]).await;
        let mut lists = memory.list_and_watch(Empty {}).await.unwrap().into_inner();
        let first = lists.next().await.unwrap().unwrap().devices;
        assert_eq!(
            (first[0].id.as_str(), first[0].health.as_str()),
            ("G.0", "Healthy")
        );
        changes.send(devices(false)).unwrap();
        let second = lists.next().await.unwrap().unwrap().devices;
        assert_eq!(second[0].health, "Unhealthy");
        changes.send(devices(true)).unwrap();

        let request = |id: &str| AllocateRequest {
            container_requests: vec![ContainerAllocateRequest {
                devices_i_ds: vec![id.to_owned()],
            }],
        };
        let answer = memory.allocate(request("G.0")).await.unwrap().into_inner();
        assert_eq!(answer.container_responses[0].cdi_devices[0].name, "G.0");
        let refused = memory.allocate(request("bad")).await.unwrap_err();
        assert!(refused.message().contains("these ids are bad"), "{refused}");
        let ids = PreStartContainerRequest {
            devices_i_ds: vec!["bad".to_owned()],
        };
        let refused = memory.pre_start_container(ids).await.unwrap_err();
        assert!(refused.message().contains("no group"), "{refused}");

        let mut cards = connect(&path, &endpoints[1]).await;
        let mut lists = cards.list_and_watch(Empty {}).await.unwrap().into_inner();
        assert_eq!(lists.next().await.unwrap().unwrap().devices[0].id, "G");
        drop(kubelet);
    }
}
