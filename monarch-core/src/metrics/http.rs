//! Serves the page over HTTP/1.1: an answer per connection.
//!
//! It is written on tokio's sockets, as is the server for other nodes. No client can make it use
//! more than a bounded amount of memory and time. Errors go to the log, and the agent runs on
//! without metrics.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Longest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Most headers of a request.
const MAX_HEADERS: usize = 64;
/// Most connections at a time; further connections are closed.
const MAX_CONNECTIONS: usize = 8;
/// Longest life of a connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two attempts to listen.
const LISTEN_RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// The same while another agent serves this agent's metrics: its page ends with it.
const SHARED_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Pause after a connection that could not be accepted: too many open files, perhaps.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Where metrics are served.
#[derive(Debug, Default)]
pub(crate) struct Listening(Mutex<Where>);

#[derive(Clone, Debug, Default)]
enum Where {
    #[default]
    Nowhere,
    At(SocketAddr),
    /// On the page of another agent of this user, which has the port.
    Shared(String),
    Failed(String),
}

impl Listening {
    fn lock(&self) -> MutexGuard<'_, Where> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address of the page.
    pub(crate) fn url(&self) -> Option<String> {
        match &*self.lock() {
            Where::At(address) => Some(format!("http://{address}/metrics")),
            Where::Shared(url) => Some(url.clone()),
            _ => None,
        }
    }

    /// Whether the page is that of another agent.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(&*self.lock(), Where::Shared(_))
    }

    /// Returns why the page is not served.
    pub(crate) fn trouble(&self) -> Option<String> {
        match &*self.lock() {
            Where::Failed(why) => Some(why.clone()),
            _ => None,
        }
    }
}

/// Makes the page.
pub(crate) type Render = Arc<dyn Fn() -> String + Send + Sync>;

/// Finds the page of an agent of this user that has the port and serves this agent's metrics, too.
pub(crate) type FindSharer = Arc<dyn Fn(u16) -> Option<String> + Send + Sync>;

/// Serves the page at `address` until the runtime ends. While another process has the address,
/// tries again every [`LISTEN_RETRY_INTERVAL`]; another agent that has it serves these metrics.
pub(crate) async fn serve(address: SocketAddr, listening: Arc<Listening>, render: Render, find: FindSharer) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut warned = false;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(e) => {
                let find = find.clone();
                let sharer = tokio::task::spawn_blocking(move || find(address.port())).await;
                if let Ok(Some(url)) = sharer {
                    if !listening.is_shared() {
                        tracing::info!(url, "metrics are served by another agent of this user");
                    }
                    *listening.lock() = Where::Shared(url);
                    tokio::time::sleep(SHARED_RETRY_INTERVAL).await;
                    continue;
                }
                let why = format!("cannot listen at {address}: {e}");
                if !warned {
                    tracing::warn!(%address, error = %e, "no metrics over HTTP (metrics.listen); tried again every 10 s");
                }
                (warned, *listening.lock()) = (true, Where::Failed(why));
                tokio::time::sleep(LISTEN_RETRY_INTERVAL).await;
            }
        }
    };
    let address = listener.local_addr().unwrap_or(address);
    *listening.lock() = Where::At(address);
    tracing::info!(%address, "metrics are served over HTTP");
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let render = render.clone();
        tokio::spawn(async move {
            // A client that sends or reads nothing is disconnected.
            let _ = tokio::time::timeout(REQUEST_TIMEOUT, converse(stream, render)).await;
            drop(place);
        });
    }
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Page { body: bool },
    Hint { body: bool },
    Wrong(u16),
}

/// Returns what the head of a request asks for; `None` while its end has not arrived.
fn asked(bytes: &[u8]) -> Option<Asked> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Some(Asked::Wrong(431)),
        Err(_) => return Some(Asked::Wrong(400)),
        Ok(httparse::Status::Complete(_)) => {}
    }
    let body = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return Some(Asked::Wrong(405)),
    };
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    Some(match path {
        "/metrics" => Asked::Page { body },
        "/" => Asked::Hint { body },
        _ => Asked::Wrong(404),
    })
}

async fn converse(mut stream: TcpStream, render: Render) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(1024);
    let asked = loop {
        if let Some(asked) = asked(&head) {
            break asked;
        }
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    };
    let answer = match asked {
        Asked::Page { body } => {
            let page = tokio::task::spawn_blocking(move || render()).await;
            page.map_or_else(|_| answer(500, "", true), |page| answer(200, &page, body))
        }
        Asked::Hint { body } => answer(200, "/metrics\n", body),
        Asked::Wrong(status) => answer(status, "", true),
    };
    stream.write_all(&answer).await?;
    stream.shutdown().await
}

fn answer(status: u16, page: &str, body: bool) -> Vec<u8> {
    let phrase = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        _ => "Internal Server Error",
    };
    let head = format!("HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n");
    let more = format!("Content-Length: {}\r\nConnection: close\r\n\r\n", page.len());
    let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let mut bytes = [head.as_str(), allow, more.as_str()].concat().into_bytes();
    if body {
        bytes.extend_from_slice(page.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Instant;

    /// A server on a free port, for as long as the runtime lives.
    fn served(address: SocketAddr) -> (tokio::runtime::Runtime, Arc<Listening>) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listening = Arc::<Listening>::default();
        let find: FindSharer = Arc::new(|_| None);
        runtime.spawn(serve(address, listening.clone(), Arc::new(|| "the_page 1\n".to_owned()), find));
        (runtime, listening)
    }

    #[track_caller]
    fn until<T>(what: impl Fn() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = what() {
                return found;
            }
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn free() -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    fn says(to: &str, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn the_page_is_served_and_nothing_else() {
        let (_runtime, listening) = served(free());
        let url = until(|| listening.url());
        let at = url.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap();
        let page = says(at, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("\r\n\r\nthe_page 1\n"), "{page}");
        assert!(page.contains("Content-Type: text/plain; version=0.0.4") && page.contains("Content-Length: 11\r\n"));
        let head = says(at, b"HEAD /metrics HTTP/1.0\r\n\r\n");
        assert!(head.ends_with("\r\n\r\n") && head.contains("Content-Length: 11\r\n"), "{head}");
        assert!(says(at, b"GET / HTTP/1.1\r\n\r\n").ends_with("/metrics\n"));
        for (request, status) in [
            (&b"GET /etc/passwd HTTP/1.1\r\n\r\n"[..], "404 "),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405 "),
            (b"\0\x01\x02\r\n\r\n", "400 "),
        ] {
            assert!(says(at, request).starts_with(&format!("HTTP/1.1 {status}")), "{}", says(at, request));
        }
        // A byte at a time, beside a client that sends nothing.
        let _silent = TcpStream::connect(at).unwrap();
        let mut slow = TcpStream::connect(at).unwrap();
        b"GET /metrics HTTP/1.1\r\n\r\n".iter().for_each(|b| slow.write_all(&[*b]).unwrap());
        let mut answer = String::new();
        slow.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("the_page 1\n"), "{answer}");
    }

    #[test]
    fn a_head_without_an_end_is_refused() {
        let endless: Vec<u8> = b"GET /metrics HTTP/1.1\r\nX: ".iter().copied().chain([b'a'; MAX_HEAD_BYTES]).collect();
        assert_eq!(asked(&endless), Some(Asked::Wrong(431)));
        assert_eq!(asked(&endless[..100]), None);
        let many = "X: y\r\n".repeat(MAX_HEADERS + 1);
        assert_eq!(asked(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()), Some(Asked::Wrong(431)));
    }

    #[test]
    fn a_port_that_another_process_has_is_told() {
        let taken = std::net::TcpListener::bind(free()).unwrap();
        let address = taken.local_addr().unwrap();
        let (_runtime, listening) = served(address);
        let why = until(|| listening.trouble());
        assert!(why.contains(&address.to_string()) && listening.url().is_none(), "{why}");
    }
}
