//! The node's pods, as the API server or the kubelet's read-only port lists them: names, annotations, phase.
//! Limits of memory do not depend on it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION};
use hyper::{Request, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;

use crate::cards::Resource;

/// Longest wait for the list.
const PATIENCE: Duration = Duration::from_secs(5);

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
    items: Option<Vec<Pod>>,
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

/// Parses a `PodList`.
///
/// # Errors
/// The text is none.
pub(crate) fn parse(text: &[u8]) -> anyhow::Result<Vec<Pod>> {
    let list: List = serde_json::from_slice(text)?;
    Ok(list.items.unwrap_or_default())
}

/// Where the list comes from.
#[derive(Debug)]
pub(crate) struct PodSource {
    uri: Uri,
    /// Read at each request: the kubelet replaces it.
    token: Option<PathBuf>,
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
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
        })
    }

    /// Returns the pods.
    ///
    /// # Errors
    /// The server does not answer within 5 seconds, refuses, or answers with something else.
    pub(crate) async fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        let mut request = Request::get(self.uri.clone()).header(ACCEPT, "application/json");
        if let Some(file) = &self.token {
            let token =
                fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        let request = request.body(Empty::new())?;
        let answer = async {
            let answer = self.client.request(request).await?;
            let status = answer.status();
            ensure!(status.is_success(), "{status}");
            let body = Limited::new(answer.into_body(), MAX_LENGTH).collect().await;
            Ok(body.map_err(|error| anyhow::anyhow!(error))?.to_bytes())
        };
        let text = tokio::time::timeout(PATIENCE, answer)
            .await
            .unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {} s", PATIENCE.as_secs())));
        let text = text.with_context(|| format!("cannot list pods at {}", self.uri))?;
        parse(&text).with_context(|| format!("{}: no list of pods", self.uri))
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
        assert_eq!(parse(text).unwrap()[0].uid(), "u");
        assert!(parse(br#"{"kind":"PodList","items":null}"#).unwrap().is_empty());
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
