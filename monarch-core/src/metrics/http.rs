//! Serves the page over HTTP/1.1: one answer a connection.
//!
//! Written on tokio's sockets, as the server for other nodes is. Whatever somebody sends here costs
//! a bounded amount of memory and time; what goes wrong is said in the log, and the agent goes on
//! without metrics.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Longest head of a request.
const HEAD_MAX: usize = 8 * 1024;
/// Most headers of one.
const HEADERS_MAX: usize = 64;
/// Most connections at a time; others are closed.
const CONNECTIONS: usize = 8;
/// How long a connection lives.
const PATIENCE: Duration = Duration::from_secs(10);
/// When it is tried again to listen.
const RETRY: Duration = Duration::from_secs(10);
/// Pause after a connection that could not be accepted: too many open files, perhaps.
const PAUSE: Duration = Duration::from_millis(100);

/// Where metrics are served.
#[derive(Debug, Default)]
pub(crate) struct Listening(Mutex<Where>);

#[derive(Clone, Debug, Default)]
enum Where {
    #[default]
    Nowhere,
    At(SocketAddr),
    Failed(String),
}

impl Listening {
    fn lock(&self) -> MutexGuard<'_, Where> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of the page.
    pub(crate) fn url(&self) -> Option<String> {
        match &*self.lock() {
            Where::At(address) => Some(format!("http://{address}/metrics")),
            _ => None,
        }
    }

    /// Why there is none.
    pub(crate) fn trouble(&self) -> Option<String> {
        match &*self.lock() {
            Where::Failed(why) => Some(why.clone()),
            _ => None,
        }
    }
}

/// Makes the page.
pub(crate) type Render = Arc<dyn Fn() -> String + Send + Sync>;

/// Serves the page at `address` for ever. Where another process listens, it is tried again now and
/// then.
pub(crate) async fn serve(address: SocketAddr, listening: Arc<Listening>, render: Render) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut told = false;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(e) => {
                let why = format!("cannot listen at {address}: {e}");
                if !told {
                    tracing::warn!(%address, error = %e, "no metrics over HTTP (metrics.listen); tried again every 10 s");
                }
                (told, *listening.lock()) = (true, Where::Failed(why));
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    let address = listener.local_addr().unwrap_or(address);
    *listening.lock() = Where::At(address);
    tracing::info!(%address, "metrics are served over HTTP");
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let render = render.clone();
        tokio::spawn(async move {
            // Who sends nothing, or reads nothing, is left.
            let _ = tokio::time::timeout(PATIENCE, converse(stream, render)).await;
            drop(place);
        });
    }
}

/// What is asked.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Page { body: bool },
    Hint { body: bool },
    Wrong(u16),
}

/// What the head of a request asks for; `None` when its end has not come yet.
fn asked(bytes: &[u8]) -> Option<Asked> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return None,
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
        runtime.spawn(serve(address, listening.clone(), Arc::new(|| "the_page 1\n".to_owned())));
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
        // A byte at a time, and somebody who sends nothing at all beside it.
        let _silent = TcpStream::connect(at).unwrap();
        let mut slow = TcpStream::connect(at).unwrap();
        b"GET /metrics HTTP/1.1\r\n\r\n".iter().for_each(|b| slow.write_all(&[*b]).unwrap());
        let mut answer = String::new();
        slow.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("the_page 1\n"), "{answer}");
    }

    #[test]
    fn a_head_without_an_end_is_refused() {
        let endless: Vec<u8> = b"GET /metrics HTTP/1.1\r\nX: ".iter().copied().chain([b'a'; HEAD_MAX]).collect();
        assert_eq!(asked(&endless), Some(Asked::Wrong(431)));
        assert_eq!(asked(&endless[..100]), None);
        let many = "X: y\r\n".repeat(HEADERS_MAX + 1);
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
