//! The socket on which processes of the job ask ([`monarch_abi::names`]), served by a thread of its
//! own.
//!
//! It lies in the runtime directory, which only the agent's user can enter. What is answered is
//! what the index would have held, which every process that maps it can read.

use super::service::{Names, kernel};
use crate::held_dir::HeldDir;
use monarch_abi::names::{HEAD_LEN, Head, SOCKET};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Connections that are served at a time, and so questions that may wait for a fetch.
const MAX_CONNECTIONS: usize = 128;
/// How long a connection may take: a listing may be long.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the thread looks whether the agent ends.
const POLL_PERIOD: Duration = Duration::from_secs(5);
/// Pause after a connection could not be taken.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Listens, until `stop`.
///
/// # Errors
/// Why there is no socket. Without one, processes ask the PFS.
pub(in crate::agent) fn start(dir: &HeldDir, names: &Arc<Names>, stop: &Arc<AtomicBool>) -> io::Result<()> {
    let _ = dir.unlink(SOCKET);
    let held = format!("/proc/self/fd/{}", dir.fd().as_raw_fd());
    let place = if Path::new(&held).exists() { Path::new(&held) } else { dir.path() };
    let listener = std::os::unix::net::UnixListener::bind(place.join(SOCKET))?;
    listener.set_nonblocking(true)?;
    let (names, stop) = (Arc::downgrade(names), stop.clone());
    let work = move || -> io::Result<()> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(MAX_CONNECTIONS).build()?;
        let served = runtime.block_on(async {
            let listener = UnixListener::from_std(listener)?;
            serve(&listener, &names, &stop).await;
            Ok(())
        });
        // Those that wait for a fetch are not waited for.
        runtime.shutdown_background();
        served
    };
    let work = move || {
        if let Err(e) = work() {
            tracing::warn!(error = %e, "directories that the index does not hold are read from the PFS");
        }
    };
    std::thread::Builder::new().name("names-ask".to_owned()).spawn(work).map(drop)
}

async fn serve(listener: &UnixListener, names: &Weak<Names>, stop: &AtomicBool) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while !stop.load(Ordering::Relaxed) {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match tokio::time::timeout(POLL_PERIOD, listener.accept()).await {
            Ok(Ok((stream, _))) => {
                let Some(names) = names.upgrade() else { return };
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, talk(stream, names)).await;
                    drop(permit);
                });
            }
            // Too many open files, perhaps.
            Ok(Err(_)) => tokio::time::sleep(RETRY_PAUSE).await,
            Err(_) => {}
        }
    }
}

/// One question and its answer.
async fn talk(mut stream: UnixStream, names: Arc<Names>) -> io::Result<()> {
    let mut bytes = [0; HEAD_LEN];
    stream.read_exact(&mut bytes).await?;
    let head = Head::of(bytes).ok_or(io::ErrorKind::InvalidData)?;
    let mut rel = vec![0; head.len];
    stream.read_exact(&mut rel).await?;
    let answer = match names.quick_answer(&head, &rel) {
        Some(answer) => answer,
        None => {
            let names = names.clone();
            tokio::task::spawn_blocking(move || names.answer(&head, &rel)).await.unwrap_or_else(|_| kernel())
        }
    };
    names.count(&answer);
    stream.write_all(&answer).await
}
