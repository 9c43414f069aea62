//! The HTTP server: metrics, the page, and the page's state.

use std::convert::Infallible;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST};
use hyper::header::{HeaderMap, HeaderValue, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::accept::{OPEN_METRICS, TEXT, prefers_open_metrics};
use crate::clients::{Client, Clients};
use crate::metrics::{open_metrics, prometheus_text};
use crate::page;
use crate::sampler::Sampler;

/// Maximum number of connections; more wait to be accepted.
const MAX_CONNECTIONS: usize = 64;

/// Longest wait for a request's header, also between two requests.
const HEADER_PATIENCE: Duration = Duration::from_secs(2);

/// Longest life of a connection.
const LIFE: Duration = Duration::from_secs(60);

/// Longest body of a request, bytes.
const MAX_BODY: usize = 4096;

/// Files of the page: path, type and text.
const FILES: &[(&str, &str, &str)] = &[
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("../page/index.html"),
    ),
    (
        "/page.css",
        "text/css; charset=utf-8",
        include_str!("../page/page.css"),
    ),
    ("/page.js", SCRIPT, include_str!("../page/page.js")),
    ("/draw.js", SCRIPT, include_str!("../page/draw.js")),
    ("/columns.js", SCRIPT, include_str!("../page/columns.js")),
    ("/details.js", SCRIPT, include_str!("../page/details.js")),
    ("/tree.js", SCRIPT, include_str!("../page/tree.js")),
    ("/waits.js", SCRIPT, include_str!("../page/waits.js")),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";
const JSON: &str = "application/json";

/// Only this server's own files, and no frames.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Everything that requests are answered from.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) sampler: Arc<Sampler>,
    /// Secret that permits freezing and thawing; `None`: both are refused.
    pub(crate) token: Option<String>,
    /// Names of this server beside `localhost` and addresses.
    pub(crate) hosts: Vec<String>,
    /// Whether the `Host` header is checked: not on a Unix socket, which no browser connects to.
    pub(crate) checks_host: bool,
}

/// Where to listen.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Request of the page to freeze or thaw.
#[derive(Debug, Deserialize)]
struct Freeze {
    /// A pid or the path of a group.
    path: String,
    frozen: bool,
}

type Answer = Response<Full<Bytes>>;

impl Listener {
    /// Listens at `ADDRESS:PORT` or `unix:PATH`. Must be called in a Tokio runtime.
    ///
    /// # Errors
    /// The address is invalid or in use.
    pub(crate) async fn bind(address: &str) -> anyhow::Result<Self> {
        let Some(path) = address.strip_prefix("unix:") else {
            let listener = TcpListener::bind(address).await;
            return Ok(Self::Tcp(
                listener.with_context(|| format!("cannot listen at {address}"))?,
            ));
        };
        if is_abandoned(Path::new(path)) {
            std::fs::remove_file(path).with_context(|| format!("cannot remove {path}"))?;
        }
        Ok(Self::Unix(
            UnixListener::bind(path).with_context(|| format!("cannot listen at {path}"))?,
        ))
    }

    /// Returns a URL or path for people.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| "?".to_owned(), |at| format!("http://{at}/")),
            Self::Unix(listener) => {
                let address = listener.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                path.map_or_else(|| "?".to_owned(), |path| format!("unix:{}", path.display()))
            }
        }
    }
}

/// Returns whether a socket lies there on which no process listens.
fn is_abandoned(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
    is_socket
        && std::os::unix::net::UnixStream::connect(path)
            .err()
            .is_some_and(refused)
}

/// Serves forever.
pub(crate) async fn serve(listener: Listener, site: Arc<Site>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let clients = Clients::default();
    loop {
        // Never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let site = Arc::clone(&site);
        let accepted = match &listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, peer)| {
                let client = Client::of_tcp(peer, stream.local_addr().ok());
                if let Some(counted) = clients.count(client) {
                    tokio::spawn(async move {
                        connection(stream, site).await;
                        drop((place, counted));
                    });
                }
            }),
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                let uid = stream.peer_cred().map_or(u32::MAX, |peer| peer.uid());
                if let Some(counted) = clients.count(Client::User(uid)) {
                    tokio::spawn(async move {
                        connection(stream, site).await;
                        drop((place, counted));
                    });
                }
            }),
        };
        if accepted.is_err() {
            // Out of descriptors, or the client has gone.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Answers the requests of a connection. Its errors concern only the client.
async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin, site: Arc<Site>) {
    let service = service_fn(|request| {
        let site = Arc::clone(&site);
        async move { Ok::<_, Infallible>(with_headers(answer(request, site).await)) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    let _ = tokio::time::timeout(LIFE, served).await;
}

async fn answer(request: Request<Incoming>, site: Arc<Site>) -> Answer {
    if site.checks_host && !is_own_host(request.headers(), &site.hosts) {
        return text(
            StatusCode::MISDIRECTED_REQUEST,
            "the Host header does not name this server\n",
        );
    }
    let is_get = request.method() == Method::GET || request.method() == Method::HEAD;
    let path = request.uri().path();
    let file = FILES.iter().find(|(name, ..)| *name == path);
    match path {
        "/metrics" if is_get => {
            let is_open = accepts_open_metrics(request.headers());
            blocking(move || metrics(&site, is_open)).await
        }
        "/state.json" if is_get => {
            let query = request.uri().query().unwrap_or_default();
            let open = query.strip_prefix("open=").map(percent_decode_str);
            let open = open.map(|path| path.decode_utf8_lossy().into_owned());
            blocking(move || state(&site, open.as_deref())).await
        }
        "/freeze" if request.method() == Method::POST => freeze(request, site).await,
        "/metrics" | "/state.json" | "/freeze" => not_allowed(),
        _ => match file {
            Some((_, kind, body)) if is_get => found(kind, *body),
            Some(_) => not_allowed(),
            None => text(StatusCode::NOT_FOUND, "not found\n"),
        },
    }
}

fn not_allowed() -> Answer {
    text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n")
}

/// Runs what may wait for the daemon beside the event loop.
async fn blocking(work: impl FnOnce() -> Answer + Send + 'static) -> Answer {
    let failed = |_| text(StatusCode::INTERNAL_SERVER_ERROR, "internal error\n");
    spawn_blocking(work).await.unwrap_or_else(failed)
}

fn accepts_open_metrics(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT).iter();
    let values: Vec<&str> = values.filter_map(|value| value.to_str().ok()).collect();
    prefers_open_metrics(&values.join(","))
}

fn metrics(site: &Site, is_open: bool) -> Answer {
    let snapshot = site.sampler.with(|state| state.snapshot.clone());
    match open_metrics(snapshot.as_deref()) {
        Ok(text) if is_open => found(OPEN_METRICS, text),
        Ok(text) => found(TEXT, prometheus_text(&text)),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
    }
}

fn state(site: &Site, open: Option<&str>) -> Answer {
    let is_writable = site.token.is_some();
    found(
        JSON,
        site.sampler.with(|state| page::state(state, open, is_writable)),
    )
}

/// Freezes or thaws, if the request has the token.
async fn freeze(request: Request<Incoming>, site: Arc<Site>) -> Answer {
    let Some(token) = &site.token else {
        return text(StatusCode::FORBIDDEN, "read-only: started without --token-file\n");
    };
    if !has_token(request.headers(), token) {
        return text(StatusCode::UNAUTHORIZED, "the token is missing or wrong\n");
    }
    let body = Limited::new(request.into_body(), MAX_BODY).collect().await;
    let body = body.ok().map(|body| body.to_bytes()).unwrap_or_default();
    let Ok(Freeze { path, frozen }) = serde_json::from_slice(&body) else {
        return text(
            StatusCode::BAD_REQUEST,
            "expected {\"path\": PID or GROUP, \"frozen\": true or false}\n",
        );
    };
    blocking(move || match site.sampler.freeze(&path, frozen) {
        Ok(()) => text(StatusCode::OK, "done\n"),
        Err(error) => text(StatusCode::CONFLICT, &format!("{error}\n")),
    })
    .await
}

/// Compares without telling by its time how much of the token is right.
fn has_token(headers: &HeaderMap, token: &str) -> bool {
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given
        .and_then(|value| value.strip_prefix("Bearer "))
        .unwrap_or_default();
    let differences = given
        .bytes()
        .zip(token.bytes())
        .fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == token.len() && differences == 0
}

/// Returns whether the request was sent to an address, `localhost` or one of these names. A page of another
/// site whose name was made to resolve to this server (DNS rebinding) sends its own name.
fn is_own_host(headers: &HeaderMap, hosts: &[String]) -> bool {
    let mut values = headers.get_all(HOST).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };
    let Ok(value) = value.to_str() else {
        return false;
    };
    let host = match value.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => value.split_once(':').map_or(value, |(host, _)| host),
    };
    let is_named = |name: &str| host.eq_ignore_ascii_case(name);
    host.parse::<IpAddr>().is_ok() || is_named("localhost") || hosts.iter().any(|name| is_named(name))
}

fn found(kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn text(status: StatusCode, body: &str) -> Answer {
    let mut answer = found("text/plain; charset=utf-8", body.to_owned());
    *answer.status_mut() = status;
    answer
}

fn with_headers(mut answer: Answer) -> Answer {
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (VARY, "Accept"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_of_another_name_is_rejected() {
        let hosts = ["gpu.example".to_owned()];
        for (host, expected) in [
            ("localhost", true),
            ("LOCALHOST:9836", true),
            ("127.0.0.1:9836", true),
            ("[::1]:9836", true),
            ("192.0.2.1", true),
            ("gpu.example:80", true),
            ("evil.example", false),
            ("evil.example:9836", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("", false),
            ("[", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static(host));
            assert_eq!(is_own_host(&headers, &hosts), expected, "{host}");
        }
        assert!(!is_own_host(&HeaderMap::new(), &hosts));
        let mut two = HeaderMap::new();
        two.append(HOST, HeaderValue::from_static("localhost"));
        two.append(HOST, HeaderValue::from_static("evil.example"));
        assert!(!is_own_host(&two, &hosts));
    }

    #[test]
    fn only_the_whole_token_is_accepted() {
        for (given, expected) in [
            ("Bearer secret", true),
            ("Bearer secre", false),
            ("Bearer secrets", false),
            ("Bearer Secret", false),
            ("Bearer ", false),
            ("secret", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(given));
            assert_eq!(has_token(&headers, "secret"), expected, "{given}");
        }
        assert!(!has_token(&HeaderMap::new(), "secret"));
    }
}
