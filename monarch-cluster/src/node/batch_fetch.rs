//! Files that one request gets from another node: the side that asks.
//!
//! No file is claimed for it, and no node waits for another one: the other node sends at once what
//! it has. The answer is read to its end, then each file is verified by its own tag and handed on.
//! What does not come is asked for by itself ([`Remote`](super::remote_file::Remote)), which waits
//! for the other node, or turns to a further one.

use super::batch_format::{Following, decode_front, encode_request, front_bytes};
use super::fetcher::Fetcher;
use super::request_paths::batch_path;
use crate::http::{Peer, Response};
use crate::tag::Tag;
use monarch_config::{MAX_BATCH_FILES, Spread};
use monarch_storage::sharing::BatchFile;
use std::io::{BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Bytes that are read at a time, at most: those of several files.
const READ_BYTES: usize = 128 << 10;

/// Takes a file, by its place in the batch, and its bytes. `false`: no more are wanted.
pub(super) type Take<'a> = dyn FnMut(usize, Arc<[u8]>) -> bool + 'a;

/// One request for several files of the node `from`.
pub(super) struct BatchFetch<'a> {
    pub(super) fetcher: &'a Fetcher,
    pub(super) from: u16,
    pub(super) files: &'a [BatchFile],
}

/// Why no more files come. What other requests learn from it was noted.
struct Ended(String);

impl BatchFetch<'_> {
    /// Requests the files, and hands on those that come.
    pub(super) fn run(&self, take: &mut Take<'_>) {
        let pool = &self.fetcher.pool;
        let Some(first) = self.files.first().filter(|_| self.files.len() <= MAX_BATCH_FILES) else { return };
        if self.fetcher.is_missing_at(self.from, &first.file) {
            return;
        }
        let Some(peer) = pool.peer(self.from) else { return };
        if let Err(Ended(why)) = self.request(&peer, &first.file.index, take) {
            let node = pool.name_of(self.from);
            tracing::debug!(node, files = self.files.len(), why, "files are asked for one by one");
        }
    }

    fn request(&self, peer: &Peer, index: &[u8; 16], take: &mut Take<'_>) -> Result<(), Ended> {
        let (fetcher, pool) = (self.fetcher, &self.fetcher.pool);
        let life = pool.life_of(self.from);
        let path = batch_path(index, pool.options().placement != Spread::Sharded);
        let body = encode_request(self.files.iter().map(|file| file.file.id));
        let mut answer = peer.post(&path, &body, pool.options().max_wait).map_err(|e| {
            pool.note_failure(self.from, life, &e);
            Ended(e.to_string())
        })?;
        match answer.status() {
            200 => {}
            404 => {
                fetcher.missing.note(self.from, *index, Instant::now());
                return Err(Ended("it does not serve this index".to_owned()));
            }
            status => return Err(Ended(format!("it answers {status}"))),
        }
        let front = front_bytes(self.files.len());
        let Some(rest) = answer.len().checked_sub(front as u64) else { return Err(self.is_none_of_ours()) };
        let front = answer.front(front).map_err(|e| {
            pool.note_io_failure(self.from, life, &e);
            Ended(e.to_string())
        })?;
        let sizes: Vec<u64> = self.files.iter().map(|file| file.size).collect();
        let Some(files) = decode_front(&front, &sizes, rest) else { return Err(self.is_none_of_ours()) };
        pool.note_success(self.from);
        fetcher.traffic.batches.fetch_add(1, Ordering::Relaxed);
        self.receive(answer, rest, &files, take).map_err(|e| {
            pool.note_io_failure(self.from, life, &e);
            Ended(e.to_string())
        })
    }

    fn is_none_of_ours(&self) -> Ended {
        self.fetcher.traffic.failed(self.from);
        Ended("its answer is not about these files".to_owned())
    }

    /// Reads the files that follow the front, all before the first is handed on: the link is for
    /// the next answer while they are copied.
    fn receive(
        &self,
        answer: Response<'_>,
        rest: u64,
        files: &[Option<Following>],
        take: &mut Take<'_>,
    ) -> std::io::Result<()> {
        let buffer = usize::try_from(rest).unwrap_or(READ_BYTES).min(READ_BYTES);
        let mut answer = BufReader::with_capacity(buffer, answer);
        let mut came: Vec<(usize, Tag, Arc<[u8]>)> = Vec::new();
        let mut end = Ok(());
        for (at, file) in files.iter().enumerate() {
            let Some(Following { len, tag }) = file else { continue };
            // Each file may take as long as one that is asked for by itself.
            answer.get_mut().renew_patience();
            let mut bytes = vec![0; *len as usize];
            end = answer.read_exact(&mut bytes);
            if end.is_err() {
                break;
            }
            came.push((at, *tag, bytes.into()));
        }
        drop(answer);
        let traffic = &self.fetcher.traffic;
        for (at, tag, bytes) in came {
            let Some(BatchFile { file, .. }) = self.files.get(at) else { break };
            let range = 0..bytes.len() as u64;
            if tag != self.fetcher.tag(file, &range, &bytes) {
                traffic.damaged.fetch_add(1, Ordering::Relaxed);
                self.fetcher.reports.report(self.from, file, range);
                continue;
            }
            traffic.received(self.from, range.end);
            traffic.batched_files.fetch_add(1, Ordering::Relaxed);
            if !take(at, bytes) {
                break;
            }
        }
        end
    }
}
