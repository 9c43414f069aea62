//! The node's pods, as the API server or the kubelet's read-only port lists them: names, annotations, phase.
//! Granted limits do not depend on this list.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use hyper::http::request::Builder;
use hyper::{Request, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::cards::Resource;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the server is asked to wait for a change, seconds: a connection that it has lost without a word
/// is noticed as late.
const WATCH: u64 = 15;

/// Longest list, bytes.
const MAX_LENGTH: usize = 64 << 20;

/// Annotation of a static pod's entry in the API server: the UID that the kubelet uses.
const MIRROR: &str = "kubernetes.io/config.mirror";

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Metadata {
    uid: String,
    name: String,
    namespace: String,
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Spec {
    containers: Vec<Container>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    resources: Resources,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Resources {
    limits: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: String,
    qos_class: String,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    name: String,
    #[serde(rename = "containerID")]
    id: String,
}

#[derive(Debug, Deserialize)]
struct List {
    #[serde(default)]
    metadata: ListMetadata,
    items: Option<Vec<Pod>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
}

impl Pod {
    /// Returns the UID that its cgroup and the kubelet's checkpoint have.
    ///
    /// Users can set the annotation. The kubelet's UID of a static pod is a hash without dashes, which is
    /// never the UID of another pod.
    pub(crate) fn uid(&self) -> &str {
        let of_static = self.annotation(MIRROR).filter(|uid| is_hash(uid));
        of_static.unwrap_or(&self.metadata.uid)
    }

    pub(crate) fn name(&self) -> &str {
        &self.metadata.name
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.metadata.namespace
    }

    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata.annotations.get(name).map(String::as_str)
    }

    /// Returns `Guaranteed`, `Burstable` or `BestEffort`; empty until the kubelet has reported it.
    pub(crate) fn qos_class(&self) -> &str {
        &self.status.qos_class
    }

    /// Returns whether its containers may run, now or later.
    pub(crate) fn is_active(&self) -> bool {
        !matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Returns the names of its containers that ask for a resource.
    pub(crate) fn asking(&self, resource: Resource) -> impl Iterator<Item = &str> {
        let asks = move |container: &&Container| container.resources.limits.contains_key(resource.name());
        self.spec
            .containers
            .iter()
            .filter(asks)
            .map(|container| container.name.as_str())
    }

    /// Returns the ids, without the runtime's name, and names of the containers that have been started.
    pub(crate) fn started(&self) -> impl Iterator<Item = (&str, &str)> {
        let statuses = self.status.container_statuses.iter();
        statuses.filter_map(|status| {
            let (_, id) = status.id.split_once("://")?;
            Some((id, status.name.as_str()))
        })
    }
}

/// Returns whether a UID is the hash of a static pod: 32 hexadecimal digits.
fn is_hash(uid: &str) -> bool {
    uid.len() == 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Parses a `PodList`. Returns the pods and the list's version, empty if it has none.
///
/// # Errors
/// The text is none.
pub(crate) fn parse(text: &[u8]) -> anyhow::Result<(Vec<Pod>, String)> {
    let list: List = serde_json::from_slice(text)?;
    Ok((list.items.unwrap_or_default(), list.metadata.resource_version))
}

/// Where the list comes from.
#[derive(Debug)]
pub(crate) struct PodSource {
    uri: Uri,
    /// Read at each request: the kubelet replaces it.
    token: Option<PathBuf>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Ends when the list may have changed.
    watch: Mutex<Option<JoinHandle<()>>>,
}

impl PodSource {
    /// # Errors
    /// The file with the authority's certificates cannot be read, or has none.
    pub(crate) fn new(uri: Uri, authority: Option<&Path>, token: Option<&Path>) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        if let Some(file) = authority {
            let name = file.display();
            let certificates =
                CertificateDer::pem_file_iter(file).with_context(|| format!("cannot read {name}"))?;
            for certificate in certificates {
                let certificate = certificate.with_context(|| format!("{name}: no PEM certificate"))?;
                roots
                    .add(certificate)
                    .with_context(|| format!("{name}: no certificate of an authority"))?;
            }
            ensure!(!roots.is_empty(), "{name} has no certificates");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .build();
        Ok(Self {
            uri,
            token: token.map(Path::to_owned),
            client: Client::builder(TokioExecutor::new()).build(connector),
            watch: Mutex::new(None),
        })
    }

    /// Returns the pods.
    ///
    /// # Errors
    /// The server does not answer within 5 seconds, refuses, or answers with something else.
    pub(crate) async fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        Ok(self.list().await?.0)
    }

    /// Returns the pods if they may have changed since the last call.
    pub(crate) async fn changed(&self) -> Option<anyhow::Result<Vec<Pod>>> {
        let is_same = |watch: &JoinHandle<()>| !watch.is_finished();
        if self.watching().as_ref().is_some_and(is_same) {
            return None;
        }
        *self.watching() = None;
        let (pods, version) = match self.list().await {
            Ok(listed) => listed,
            Err(error) => return Some(Err(error)),
        };
        // Read-only ports of kubelets have no versions: there each look is a list.
        if !version.is_empty() {
            *self.watching() = self.watch(&version).ok();
        }
        Some(Ok(pods))
    }

    fn watching(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the first change after a version, in a task that then ends.
    fn watch(&self, version: &str) -> anyhow::Result<JoinHandle<()>> {
        let join = if self.uri.query().is_some() { '&' } else { '?' };
        let uri = format!(
            "{}{join}watch=1&resourceVersion={version}&timeoutSeconds={WATCH}",
            self.uri
        );
        let request = self.request(Request::get(uri), Bytes::new())?;
        let answer = self.client.request(request);
        Ok(tokio::spawn(async move {
            let change = async { answer.await.ok()?.into_body().frame().await };
            // A change, the end or an error: the next list tells.
            let _ = timeout(Duration::from_secs(WATCH) + PATIENCE, change).await;
        }))
    }

    async fn list(&self) -> anyhow::Result<(Vec<Pod>, String)> {
        let request = self.request(Request::get(self.uri.clone()), Bytes::new())?;
        let text = self.answer(request).await;
        let text = text.with_context(|| format!("cannot list pods at {}", self.uri))?;
        parse(&text).with_context(|| format!("{}: no list of pods", self.uri))
    }

    /// Adds a warning to the events of a pod, if the source is an API server.
    ///
    /// # Errors
    /// The server does not answer within 5 seconds, or refuses.
    pub(crate) async fn warn(&self, pod: &Pod, message: &str) -> anyhow::Result<()> {
        if self.token.is_none() {
            return Ok(());
        }
        let Metadata {
            uid, name, namespace, ..
        } = &pod.metadata;
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let event = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "generateName": format!("{name}."), "namespace": namespace },
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "name": name, "namespace": namespace, "uid": uid,
            },
            "type": "Warning",
            "reason": "SettingRefused",
            "message": message,
            "source": { "component": "gcgroup-kubelet-plugin" },
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        let mut parts = self.uri.clone().into_parts();
        parts.path_and_query = Some(format!("/api/v1/namespaces/{namespace}/events").parse()?);
        let request = Request::post(Uri::from_parts(parts)?).header(CONTENT_TYPE, "application/json");
        let request = self.request(request, serde_json::to_vec(&event)?.into())?;
        let answer = self.answer(request).await;
        answer.with_context(|| format!("cannot add an event to pod {namespace}/{name}"))?;
        Ok(())
    }

    fn request(&self, request: Builder, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut request = request.header(ACCEPT, "application/json");
        if let Some(file) = &self.token {
            let token =
                fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        Ok(request.body(Full::new(body))?)
    }

    async fn answer(&self, request: Request<Full<Bytes>>) -> anyhow::Result<Bytes> {
        let answer = async {
            let answer = self.client.request(request).await?;
            let status = answer.status();
            ensure!(status.is_success(), "{status}");
            let body = Limited::new(answer.into_body(), MAX_LENGTH).collect().await;
            Ok(body.map_err(|error| anyhow::anyhow!(error))?.to_bytes())
        };
        timeout(PATIENCE, answer)
            .await
            .unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {} s", PATIENCE.as_secs())))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Pod `name` of the namespace `team` with a container `c`.
    pub(crate) fn pod(uid: &str, name: &str, annotations: serde_json::Value, phase: &str) -> Pod {
        let pod = serde_json::json!({
            "metadata": { "uid": uid, "name": name, "namespace": "team", "annotations": annotations },
            "spec": { "containers": [
                { "name": "c", "resources": { "limits": { "gcgroup.io/gpu-memory": "2", "cpu": "1" } } },
                { "name": "other" },
            ] },
            "status": { "phase": phase, "qosClass": "Burstable", "containerStatuses": [
                { "name": "c", "containerID": "containerd://0123" }, { "name": "other", "containerID": "" },
            ] },
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn list_has_uids_names_and_containers() {
        let text = br#"{"kind":"PodList","items":[{"metadata":{"uid":"u"}},{}]}"#;
        assert_eq!(parse(text).unwrap().0[0].uid(), "u");
        let (pods, version) = parse(br#"{"metadata":{"resourceVersion":"7"},"items":null}"#).unwrap();
        assert!(pods.is_empty());
        assert_eq!(version, "7");
        assert!(parse(b"Unauthorized").is_err());

        let pod = pod("u", "p", serde_json::json!({}), "Running");
        assert_eq!(pod.asking(Resource::Memory).collect::<Vec<_>>(), ["c"]);
        assert_eq!(pod.asking(Resource::Card).count(), 0);
        assert_eq!(pod.started().collect::<Vec<_>>(), [("0123", "c")]);
    }

    #[test]
    fn mirror_of_static_pod_has_the_uid_of_the_kubelet() {
        let hash = "0123456789abcdef0123456789abcdef";
        let mirror = serde_json::json!({ "kubernetes.io/config.mirror": hash });
        assert_eq!(pod("u", "p", mirror, "Running").uid(), hash);
    }

    #[test]
    fn annotation_does_not_give_the_uid_of_another_pod() {
        for uid in [
            "6d1c2ff8-6e2f-4f0b-9d3a-0a1b2c3d4e5f",
            "",
            "0123456789abcdef0123456789abcde",
            "0123456789abcdef0123456789abcdeg",
            "../456789abcdef0123456789abcdef00",
        ] {
            let mirror = serde_json::json!({ "kubernetes.io/config.mirror": uid });
            assert_eq!(pod("u", "p", mirror, "Running").uid(), "u", "{uid}");
        }
    }

    #[test]
    fn ended_pods_are_inactive() {
        for (phase, is_active) in [
            ("Pending", true),
            ("Running", true),
            ("Succeeded", false),
            ("Failed", false),
        ] {
            let pod = pod("u", "p", serde_json::json!({}), phase);
            assert_eq!(pod.is_active(), is_active, "{phase}");
        }
    }
}
