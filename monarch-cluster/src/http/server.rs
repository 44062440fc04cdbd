//! The side that answers: files of this node for other nodes.
//!
//! One task per connection on few threads; a request is answered before the next one of its
//! connection is read. Files go out by `sendfile(2)`, which reads them on the thread that sends:
//! what is not in the page cache holds up that thread, not the others. With TLS they are read in
//! pieces. A file that turns out shorter than promised ends the connection; nothing is ever made up
//! for it.
//!
//! | module | what it does |
//! |---|---|
//! | [`options`] | how it is to be |
//! | [`shared`] | what its tasks have in common |
//! | [`answer`] | what a handler is given and gives |
//! | [`conn`] | one connection from accept to close |
//! | [`stream`] | with or without TLS |
//! | [`tls_end`] | TLS: what is not sent yet, what is not read yet |
//! | [`handshake`] | whether it has authenticated |
//! | [`strangers`] | places for connections that have not yet |
//! | [`send`] | heads and bodies on their way out |
//! | [`file_pieces`] | files on their way into TLS |
//! | [`pace`] | limits on bytes a second |
//! | [`text`] | the words of heads |
//! | [`stats`] | what is counted, and said about refusals |

mod answer;
mod conn;
mod file_pieces;
mod handshake;
mod options;
mod pace;
mod send;
mod shared;
mod stats;
mod strangers;
mod stream;
mod text;
mod tls_end;

pub use answer::{Answer, Answering, Body, Handler, Request};
pub use options::Options;
pub use stats::Metrics;
pub use strangers::MAX_STRANGERS as STRANGERS;

use super::auth;
use super::error::WireError;
use super::refusal::Refusal;
use pace::Paces;
use shared::Shared;
use stats::Refusals;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use strangers::Strangers;
use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tokio::task::{JoinHandle, JoinSet};

/// A server; it stops when dropped.
#[derive(Debug)]
pub struct Server {
    addr: SocketAddr,
    metrics: Arc<Metrics>,
    limit: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
    runtime: Option<Runtime>,
}

impl Server {
    /// Listens and answers by `handler`, on the caller's `runtime` (with I/O and time enabled) or
    /// on threads of its own.
    ///
    /// # Errors
    /// [`WireError::Listen`] if the address is taken or not this node's, [`WireError::Request`] for
    /// a name that no node may have, [`WireError::System`] if there are no threads to be had.
    pub fn start(options: Options, handler: Arc<dyn Handler>, runtime: Option<Handle>) -> Result<Self, WireError> {
        if !auth::is_name(&options.name) {
            return Err(WireError::Request { what: format!("{:?} is no name for a node", options.name) });
        }
        let addr = options.listen;
        let listen = |source| WireError::Listen { addr, source };
        let socket = listen_at(addr).map_err(listen)?;
        let own = match runtime {
            Some(_) => None,
            None => Some(own_runtime(options.workers)?),
        };
        let handle = runtime.or_else(|| own.as_ref().map(|own| own.handle().clone())).unwrap_or_else(Handle::current);
        let entered = handle.enter();
        let listener = TcpListener::from_std(socket).map_err(listen)?;
        let addr = listener.local_addr().map_err(listen)?;
        drop(entered);
        let metrics = Arc::<Metrics>::default();
        let paces = Paces::new(options.bandwidth_limit, options.peer_bandwidth_limit);
        let refusals = Refusals::new(Arc::clone(&metrics));
        let limit = Arc::new(AtomicUsize::new(options.connections));
        let shared = Arc::new(Shared {
            limit: Arc::clone(&limit),
            options,
            handler,
            metrics: Arc::clone(&metrics),
            refusals,
            paces,
            proven: AtomicUsize::new(0),
            strangers: Arc::default(),
            rooms: file_pieces::Rooms::default(),
            handshake_gate: tokio::sync::Semaphore::new(shared::HANDSHAKES_AT_A_TIME),
        });
        let accepting = handle.spawn(accept(listener, shared));
        Ok(Self { addr, metrics, limit, accepting, runtime: own })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many proven connections it takes at a time from now on. Those that are open stay.
    pub fn admit(&self, connections: usize) {
        self.limit.store(connections, Ordering::Relaxed);
    }

    /// What it has done so far.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn own_runtime(workers: usize) -> Result<Runtime, WireError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers.max(1))
        .thread_name("monarch-peer")
        .enable_io()
        .enable_time()
        .build()
        .map_err(|source| WireError::System { what: "start the threads that answer other agents", source })
}

fn listen_at(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(addr), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

/// A connection that is open, counted for as long as this lives.
struct Open(Arc<Metrics>);

impl Open {
    fn new(metrics: &Arc<Metrics>) -> Self {
        metrics.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(metrics))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Takes connections until the server is dropped; that ends those that are open, too.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        let (stream, from) = match listener.accept().await {
            Ok(taken) => taken,
            Err(err) => {
                // Out of descriptors, say: what is open needs time to end.
                tracing::warn!("cannot take connections of other agents: {err}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let shared = Arc::clone(&shared);
        if shared.is_full() {
            shared.refusals.note(Refusal::Full, from.ip());
            conn::refuse_full(&stream);
            continue;
        }
        // Another stranger may be closed for it: how many there are is bounded, and a node that
        // authenticates has a place.
        let stranger = Strangers::admit(&shared.strangers, from.ip());
        shared.strangers.closed().await;
        let counted = Open::new(&shared.metrics);
        open.spawn(async move {
            let _counted = counted;
            conn::serve(stream, from.ip(), &shared, stranger).await;
        });
    }
}
