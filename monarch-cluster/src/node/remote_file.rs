//! A file that another node owns, as a source of bytes: from its owner, from another holder, in the
//! end from the PFS.
//!
//! Each read is a request of its own, for as many bytes as were asked for, and the answer has their
//! tag: what arrives damaged or forged, late, or not at all is asked for elsewhere, and the caller
//! does not notice. Only three answers are for the caller: that the file has changed, that there is
//! no room for it anywhere (then it is not copied at all), and that this node is to keep it instead
//! of its owner.

use super::fetch_tracker::FetchId;
use super::fetcher::Fetcher;
use super::request_limits::{INDEX_ARRIVAL_TIMEOUT, MAX_REQUEST_BYTES};
use super::request_paths::Purpose;
use super::wait_graph::Coming;
use crate::directory::Search;
use crate::http::Sent;
use crate::sync::lock;
use monarch_abi::hash::Identity;
use monarch_storage::engine::{Source, SourceFile};
use monarch_storage::sharing::{FailureAction, FetchRequest, FileRef, RemoteFile};
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long chunks of a large file come from the PFS after no peer could help.
const PFS_PERIOD: Duration = Duration::from_secs(1);

/// What other nodes said of the file.
const NOTHING: u8 = 0;
const KEEP: u8 = 1;
const REFUSED: u8 = 2;
const CHANGED: u8 = 3;

/// One fetch of a file.
pub(super) struct Remote {
    fetcher: Arc<Fetcher>,
    file: FileRef,
    rel: Vec<u8>,
    source: Arc<dyn Source>,
    want: Identity,
    demand: bool,
    /// Whether it is this node that answers for it.
    own: bool,
    /// Whether it comes in chunks: then it stays where it was begun.
    large: bool,
    /// All of it, if it came with other files.
    arrived: Option<Arc<[u8]>>,
    said: AtomicU8,
    state: State,
}

/// What changes while the file is read.
#[derive(Default)]
struct State {
    /// When no peer could help last.
    failed: Mutex<Option<Instant>>,
    /// The fetch from the PFS that was noted.
    began: Mutex<Option<FetchId>>,
    /// The file on the PFS, once it is needed.
    original: Mutex<Option<Arc<dyn SourceFile>>>,
    /// The request that was sent before the first read.
    early: Mutex<Option<Early>>,
    /// Whether the PFS has failed, too.
    pfs_failed: AtomicBool,
}

/// A request for all of a small file that was sent ahead of its read.
struct Early {
    search: Search,
    to: u16,
    coming: Coming,
    sent: Sent,
}

/// Outcome of a request.
enum Got {
    Bytes,
    /// That node has it, or does the work.
    Redirect(String),
    /// That node has this piece.
    Relay(String),
    Keep,
    Refused,
    Changed,
    /// A relay does not have the piece.
    NotHere,
    /// Nothing that could be used.
    Failed(String),
}

impl Remote {
    /// A fetch of the requested file; `own`: this node answers for it.
    pub(super) fn new(fetcher: Arc<Fetcher>, request: &FetchRequest<'_>, own: bool) -> Self {
        Self {
            fetcher,
            file: request.file,
            rel: request.rel.to_vec(),
            source: request.source.clone(),
            want: request.want,
            demand: request.demand,
            own,
            large: request.chunked,
            arrived: request.arrived.cloned(),
            said: AtomicU8::new(NOTHING),
            state: State::default(),
        }
    }

    fn says(&self, what: u8) -> io::Error {
        self.said.store(what, Ordering::Release);
        io::Error::other("the file's owner sends it elsewhere")
    }

    /// This node is to fetch the file from the PFS, and keep it. A large one stays where it was
    /// begun.
    fn keep(&self) -> io::Result<bool> {
        *lock(&self.state.began) = Some(self.fetcher.begin(&self.file));
        *lock(&self.state.failed) = Some(Instant::now());
        if self.large || self.own { Ok(false) } else { Err(self.says(KEEP)) }
    }

    /// Reads from other nodes; `Ok(false)` when none of them could help.
    fn ask_peers(&self, buf: &mut [u8], off: u64) -> io::Result<bool> {
        let all = off == 0 && buf.len() as u64 == self.want.size;
        let (mut search, mut early) = match lock(&self.state.early).take().filter(|_| all) {
            Some(Early { search, to, coming, sent }) => (search, Some((to, coming, sent))),
            None => (Search::new(), None),
        };
        let mut left = self.fetcher.pool.options().peer_timeout;
        // A further node may have just come up, and wait for the index: there has to be time for
        // that.
        let least = INDEX_ARRIVAL_TIMEOUT.min(left / 2).max(Duration::from_nanos(1));
        while left >= least {
            let (to, _coming, sent) = match early.take() {
                Some((to, coming, sent)) => (to, coming, Some(sent)),
                None => match self.fetcher.next(&mut search, &self.file) {
                    Some((to, coming)) => (to, coming, None),
                    None => break,
                },
            };
            if self.fetcher.is_missing_at(to, &self.file) {
                search.failed(to);
                continue;
            }
            let begun = Instant::now();
            let purpose = if self.large { Purpose::Piece } else { Purpose::Bytes };
            let mut got = self.ask((to, search.hops(), purpose), sent, buf, off);
            if let Got::Relay(name) = &got {
                got = self.ask_relay(name, (to, search.hops()), buf, off);
            }
            if let Got::Keep | Got::Refused | Got::Changed = got {
                self.fetcher.directory.not_held(to, &self.file);
            }
            match got {
                Got::Bytes => {
                    if self.large {
                        self.fetcher.receipts.arrived(&self.file, off, to);
                    }
                    return Ok(true);
                }
                Got::Redirect(name) => match self.fetcher.pool.view().number(&name) {
                    Some(other) => search.redirected(to, other),
                    None => search.failed(to),
                },
                Got::Keep => return self.keep(),
                Got::Refused => return Err(self.says(REFUSED)),
                Got::Changed => return Err(self.says(CHANGED)),
                Got::Relay(_) | Got::NotHere => search.failed(to),
                Got::Failed(why) => {
                    left = left.saturating_sub(begun.elapsed().max(Duration::from_micros(1)));
                    self.fetcher.log_failure(to, &self.rel, &why);
                    search.failed(to);
                }
            }
        }
        self.keep()
    }

    /// Asks a relay that `to` has named, and `to` itself if the relay does not send the piece.
    fn ask_relay(&self, name: &str, (to, hops): (u16, u8), buf: &mut [u8], off: u64) -> Got {
        let view = self.fetcher.pool.view();
        let relay = view.number(name).filter(|n| view.is_up(*n) && !self.fetcher.is_missing_at(*n, &self.file));
        if let Some(relay) = relay {
            match self.ask((relay, 0, Purpose::Relayed), None, buf, off) {
                Got::Bytes => return Got::Bytes,
                Got::Failed(why) => self.fetcher.log_failure(relay, &self.rel, &why),
                _ => {}
            }
        }
        self.ask((to, hops, Purpose::Direct), None, buf, off)
    }

    fn ask(&self, (to, hops, purpose): (u16, u8, Purpose), sent: Option<Sent>, buf: &mut [u8], off: u64) -> Got {
        let (fetcher, pool) = (&self.fetcher, &self.fetcher.pool);
        let life = pool.life_of(to);
        let Some(peer) = pool.peer(to) else { return Got::Failed("its address is not known".to_owned()) };
        let path = fetcher.file_path(&self.file, purpose);
        let range = off..off + buf.len() as u64;
        let mut answer = match peer.get_sent(sent, &path, Some(range), hops, pool.options().max_wait) {
            Ok(answer) => answer,
            Err(e) => {
                pool.note_failure(to, life, &e);
                return Got::Failed(e.to_string());
            }
        };
        match answer.status() {
            200 | 206 if answer.len() == buf.len() as u64 => {}
            307 => {
                let name = answer.header("Monarch-Node").map(str::to_owned);
                let is_relay = answer.header("Monarch-Relay").is_some();
                let other = if is_relay { Got::Relay } else { Got::Redirect };
                return name.map_or_else(|| Got::Failed("it names no other node".to_owned()), other);
            }
            409 if answer.header("Monarch-Keep").is_some() => return Got::Keep,
            409 => return Got::Refused,
            410 => return Got::Changed,
            421 => return Got::NotHere,
            404 => {
                fetcher.missing.note(to, self.file.index, Instant::now());
                return Got::Failed("it does not serve this index".to_owned());
            }
            status => return Got::Failed(format!("it answers {status} with {} bytes", answer.len())),
        }
        let tag = answer.tag();
        if let Err(e) = answer.read_exact(buf) {
            pool.note_io_failure(to, life, &e);
            return Got::Failed(e.to_string());
        }
        if tag != Some(fetcher.tag(&self.file, &(off..off + buf.len() as u64), buf)) {
            fetcher.traffic.damaged.fetch_add(1, Ordering::Relaxed);
            fetcher.reports.report(to, &self.file, off..off + buf.len() as u64);
            return Got::Failed("its bytes arrived damaged".to_owned());
        }
        pool.note_success(to);
        fetcher.traffic.received(to, buf.len() as u64);
        Got::Bytes
    }

    /// The file on the PFS.
    fn original(&self) -> io::Result<Arc<dyn SourceFile>> {
        if let Some(file) = &*lock(&self.state.original) {
            return Ok(file.clone());
        }
        self.fetcher.store.before_pfs_call(0, self.demand);
        let file: Arc<dyn SourceFile> = self.source.open(&self.rel)?.into();
        Ok(lock(&self.state.original).insert(file).clone())
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(began) = *lock(&self.state.began) {
            self.fetcher.tracker.end_this(&self.file, began);
        }
        if self.large {
            self.fetcher.receipts.ended(&self.file);
        }
    }
}

impl SourceFile for Remote {
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<usize> {
        let left = usize::try_from(self.want.size.saturating_sub(off)).unwrap_or(usize::MAX);
        let n = buf.len().min(left);
        let Some(buf) = buf.get_mut(..n).filter(|b| !b.is_empty()) else { return Ok(0) };
        // What was begun from the PFS is read on there: one answer about its identity then holds
        // for all of it. (Chunks of a large one are asked for again after a while: the rest of it
        // may be had.)
        let begun = match self.large {
            true => lock(&self.state.failed).is_some_and(|t| t.elapsed() < PFS_PERIOD),
            false => lock(&self.state.original).is_some(),
        };
        let keeps = self.said.load(Ordering::Acquire) == KEEP;
        if let Some(arrived) = &self.arrived
            && let Some(bytes) = usize::try_from(off).ok().and_then(|off| arrived.get(off..off.checked_add(n)?))
        {
            buf.copy_from_slice(bytes);
            return Ok(n);
        }
        if !begun && !keeps && self.ask_peers(buf, off)? {
            return Ok(n);
        }
        let read = self.original().and_then(|original| {
            self.fetcher.store.before_pfs_call(n as u64, self.demand);
            original.read_at(buf, off)
        });
        self.state.pfs_failed.store(read.is_err(), Ordering::Release);
        read
    }

    fn identity_now(&self) -> io::Result<Identity> {
        // What a peer sent was compared there.
        let original = lock(&self.state.original).clone();
        original.map_or(Ok(self.want), |file| file.identity_now())
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn at_once(&self) -> Option<usize> {
        Some(MAX_REQUEST_BYTES as usize)
    }
}

impl RemoteFile for Remote {
    fn will_be_read(&self) {
        if self.arrived.is_some() || self.large || self.want.size == 0 || self.want.size > MAX_REQUEST_BYTES {
            return;
        }
        let mut search = Search::new();
        let Some((to, coming)) = self.fetcher.next(&mut search, &self.file) else { return };
        let is_asked = !self.fetcher.is_missing_at(to, &self.file);
        let Some(peer) = self.fetcher.pool.peer(to).filter(|_| is_asked) else { return };
        if let Some(sent) =
            peer.send(&self.fetcher.file_path(&self.file, Purpose::Bytes), Some(0..self.want.size), search.hops())
        {
            *lock(&self.state.early) = Some(Early { search, to, coming, sent });
        }
    }

    fn after_failure(&self) -> FailureAction {
        match self.said.load(Ordering::Acquire) {
            KEEP if !self.state.pfs_failed.load(Ordering::Acquire) => FailureAction::Again,
            REFUSED => FailureAction::Refused,
            CHANGED => FailureAction::Changed,
            _ => FailureAction::Failed,
        }
    }

    fn is_kept(&self) -> bool {
        self.own || self.said.load(Ordering::Acquire) == KEEP
    }
}
