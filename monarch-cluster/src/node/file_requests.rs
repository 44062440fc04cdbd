//! Answers to requests for bytes of files.

use super::batch_format::{Following, encode_front};
use super::fetch_tracker::FetchTracker;
use super::file_directory::FileDirectory;
use super::local_copy::{Bytes, LocalCopies, LocalFile};
use super::peer_pool::PeerPool;
use super::relays::{Asking, Relays};
use super::request_limits::{MAX_REQUEST_BYTES, MIN_PIECE_BYTES, MIN_RELAY_NODES};
use super::request_paths::Purpose;
use super::send_slots::SendSlots;
use super::traffic_stats::TrafficStats;
use super::wait_graph::{WaitGraph, Waits};
use crate::directory::{self, Asked, Local, MAX_HOPS, Route};
use crate::http::{Answer, Body, ByteRange};
use crate::tag::Tag;
use monarch_storage::sharing::{MAX_BATCH_BYTES, MAX_BATCHED_FILE_BYTES};
use rustix::fd::OwnedFd;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::OwnedSemaphorePermit;

/// Answers under way from which on other nodes that have a file had better send it.
const BUSY_ANSWERS: usize = 64;

/// An answer that is under way, to the last byte, for as long as this lives. (It may outlive the
/// node, and must not be what keeps it.)
pub(super) struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(answering: &Arc<AtomicUsize>) -> Self {
        answering.fetch_add(1, Ordering::Relaxed);
        Self(answering.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request of another node for a file, as far as it steers the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileRequest<'a> {
    /// Name of the node that asks.
    pub(super) peer: &'a str,
    /// Whether it will keep a copy.
    pub(super) keeps: bool,
    /// What it is for.
    pub(super) purpose: Purpose,
    /// How often the request was redirected.
    pub(super) hops: u8,
}

/// Sends what this node has, fetches what it is to fetch, and names other nodes for the rest.
pub(super) struct FileRequests {
    pub(super) pool: Arc<PeerPool>,
    pub(super) directory: Arc<FileDirectory>,
    pub(super) waits: Arc<WaitGraph>,
    pub(super) tracker: Arc<FetchTracker>,
    pub(super) copies: Arc<LocalCopies>,
    pub(super) traffic: Arc<TrafficStats>,
    pub(super) relays: Arc<Relays>,
    /// Answers for files that are under way.
    pub(super) answering: Arc<AtomicUsize>,
    pub(super) slots: Arc<SendSlots>,
    /// Those of batches: no demand waits for one.
    pub(super) batch_slots: Arc<SendSlots>,
}

impl FileRequests {
    /// Counts an answer that is under way.
    pub(super) fn count(&self) -> Counted {
        Counted::new(&self.answering)
    }

    /// Waits until an answer may be sent beside the others. Until then the server says that it is
    /// being worked on.
    pub(super) async fn sent_in_turn(&self, answer: Answer, asking: Option<Asking>, counted: Counted) -> Answer {
        let slot = self.slots.take(answer.body.len()).await;
        let sending = asking.filter(|_| answer.tag.is_some()).map(|asking| self.relays.begins(asking));
        answer.holding((counted, slot, sending))
    }

    /// The same of a batch, beside other batches; `place` is held to its last byte.
    pub(super) async fn batch_in_turn(&self, answer: Answer, counted: Counted, place: OwnedSemaphorePermit) -> Answer {
        let slot = self.batch_slots.take_for_batch(answer.body.len()).await;
        answer.holding((counted, slot, place))
    }

    /// A file that a request names.
    pub(super) fn find(&self, index: [u8; 16], id: u32) -> Option<LocalFile> {
        self.copies.find(index, id)
    }

    /// Whether this node has more to do than it should, so that other nodes that have a file had
    /// better send it.
    fn is_busy(&self) -> bool {
        self.answering.load(Ordering::Relaxed) > BUSY_ANSWERS
    }

    /// Waits until it is the turn of a request for a piece. Either a relay sends the piece, and
    /// that is the answer, or this node does; then other nodes wait for the request for as long as
    /// the second part lives.
    pub(super) async fn turn(
        &self,
        request: FileRequest<'_>,
        (index, id): ([u8; 16], u32),
        range: Option<ByteRange>,
    ) -> (Option<Answer>, Option<Asking>) {
        let piece = || {
            let here = self.find(index, id)?;
            let range = range.and_then(|r| r.resolve(here.size()))?;
            let is_piece = (MIN_PIECE_BYTES..=MAX_REQUEST_BYTES).contains(&(range.end - range.start));
            let asker = self.pool.view().number(request.peer).filter(|_| is_piece)?;
            Some((here, range, asker))
        };
        let is_turn = matches!(request.purpose, Purpose::Piece | Purpose::Direct)
            && request.hops < MAX_HOPS
            && self.pool.view().count_up() >= MIN_RELAY_NODES;
        let Some((here, range, asker)) = is_turn.then(piece).flatten() else { return (None, None) };
        let asking = self.relays.asking(here.file(), &range, asker);
        if here.continues_chunk(range.start) {
            self.relays.has_got_former(&asking);
        }
        if request.purpose == Purpose::Direct {
            self.relays.failed(asking.piece(), asker);
            return (None, Some(asking));
        }
        let relay = self.relays.turn(&asking, || self.is_source(&here).then(|| here.has(&range))).await;
        let view = self.pool.view();
        let Some(member) = relay.and_then(|relay| view.get(relay)) else { return (None, Some(asking)) };
        let asked = Asked { from: Some(asker), hops: request.hops, keeps: request.keeps, busy: false };
        self.directory.sent(here.file(), &view, &asked);
        let answer = Answer::status(307).header("Monarch-Node", member.name.to_string());
        (Some(answer.header("Monarch-Relay", "1".to_owned())), None)
    }

    /// Whether this node has a file, or gets it from the PFS.
    fn is_source(&self, here: &LocalFile) -> bool {
        match self.waits.look(|waits| here.standing(waits)) {
            Local::Resident | Local::Coming(None) => true,
            Local::Absent => self.directory.route(here.file(), &self.pool.view()) == Route::Pfs,
            _ => false,
        }
    }

    /// The answer to a request for a piece that this node is named for as a relay. Blocks for a
    /// moment.
    pub(super) fn relay(&self, peer: &str, here: &LocalFile, range: &Range<u64>) -> Answer {
        match self.copies.present(here, range) {
            Some(Ok(bytes)) => {
                let answer = self.send(self.pool.view().number(peer), here, range, bytes);
                let sent = if answer.tag.is_some() { range.end - range.start } else { 0 };
                self.traffic.relayed_bytes.fetch_add(sent, Ordering::Relaxed);
                answer
            }
            Some(Err(e)) => Answer::text(500, &format!("the copy cannot be read: {e}")),
            None => Answer::status(421),
        }
    }

    /// The answer where nothing has to be waited for: a complete copy, whose tag was made before.
    pub(super) fn quick_answer(
        &self,
        request: FileRequest<'_>,
        (index, id): ([u8; 16], u32),
        range: Option<ByteRange>,
    ) -> Option<Answer> {
        let here = self.find(index, id).filter(LocalFile::is_complete)?;
        let range = range.map_or(Some(0..here.size()), |r| r.resolve(here.size()))?;
        let view = self.pool.view();
        let from = view.number(request.peer);
        let asked = Asked { from, hops: request.hops, keeps: request.keeps, busy: self.is_busy() };
        let answer = self.directory.answer(here.file(), &view, &asked, Local::Resident);
        let serves = answer == directory::Answer::Serve && self.copies.knows_tag(&here, &range);
        let copy = serves.then(|| self.copies.copy(&here)).flatten()?;
        Some(self.send(from, &here, &range, copy))
    }

    /// The answer to a request for several small files: those of which there are complete copies.
    /// No other node is asked, nothing is fetched. Blocks while tags are made.
    pub(super) fn batch(&self, peer: &str, keeps: bool, index: [u8; 16], ids: &[u32]) -> Answer {
        let from = self.pool.view().number(peer);
        let asked = Asked { from, hops: 0, keeps, busy: self.is_busy() };
        let (mut files, mut left) = (Vec::new(), MAX_BATCH_BYTES);
        let mut entry = |id: u32| {
            let here = self.find(index, id).filter(|here| here.size() <= left.min(MAX_BATCHED_FILE_BYTES))?;
            let (fd, tag) = self.ready(&here, &asked)?;
            left -= here.size();
            files.push((fd, here.size()));
            Some(Following { len: u32::try_from(here.size()).ok()?, tag })
        };
        let entries: Vec<_> = ids.iter().map(|id| entry(*id)).collect();
        if let Some(to) = from {
            files.iter().for_each(|(_, len)| self.traffic.sent(to, *len));
        }
        Answer { body: Body::Files { front: encode_front(&entries), files }, ..Answer::status(200) }
    }

    /// A complete copy that is to be sent, and its tag.
    fn ready(&self, here: &LocalFile, asked: &Asked) -> Option<(Arc<OwnedFd>, Tag)> {
        if !here.is_complete() || here.size() == 0 {
            return None;
        }
        let copy = self.copies.copy(here)?;
        let tag = self.copies.tag(here, &(0..here.size()), &copy).ok()?;
        let Bytes::Copy(fd) = copy else { return None };
        // The asker is noted as a holder by this.
        let answer = self.directory.answer(here.file(), &self.pool.view(), asked, Local::Resident);
        (answer == directory::Answer::Serve).then_some((fd, tag))
    }

    /// The answer to a request for some bytes of a file. Blocks while the file is fetched.
    pub(super) fn answer(&self, request: FileRequest<'_>, here: &LocalFile, range: &Range<u64>) -> Answer {
        let FileRequest { peer, keeps, hops, .. } = request;
        let (view, file) = (self.pool.view(), here.file());
        let from = view.number(peer);
        // A node that is to keep a file for which there is no room here has to be willing; it may
        // say no by itself.
        let asked = |local| Asked { from, hops, keeps: keeps || local == Local::NoRoom, busy: self.is_busy() };
        let (standing, mut answer, promise) = self.waits.answer(file, &view, |waits| here.standing(waits), asked);
        if let Local::Coming(Some(source)) = standing
            && from != Some(source)
            && hops < MAX_HOPS
            && let Some(member) = view.get(source)
        {
            // No node waits for one that waits for another: they might form a circle.
            return Answer::status(307).header("Monarch-Node", member.name.to_string());
        }
        if let directory::Answer::Serve | directory::Answer::FetchAndServe = answer {
            if answer == directory::Answer::FetchAndServe {
                // (Not only when it has been passed on often enough: it was decided just now.)
                self.tracker.force(*file);
            }
            let got = self.copies.bytes(here, range);
            // What was there after all was not fetched.
            self.tracker.unforce(file);
            match got {
                Ok(bytes) => {
                    self.directory.sent(file, &self.pool.view(), &asked(standing));
                    return self.send(from, here, range, bytes);
                }
                Err(Some(e)) => return Answer::text(500, &format!("the copy cannot be read: {e}")),
                Err(None) => {}
            }
            here.cancel_request();
            drop(promise);
            let failed = |waits: &Waits| match here.standing(waits) {
                Local::Changed => Local::Changed,
                _ => Local::NoRoom,
            };
            answer = self.waits.answer(file, &view, failed, asked).1;
        }
        match answer {
            directory::Answer::Redirect(to) => match view.get(to) {
                Some(member) => Answer::status(307).header("Monarch-Node", member.name.to_string()),
                None => Answer::status(409),
            },
            directory::Answer::Delegate => Answer::status(409).header("Monarch-Keep", "1".to_owned()),
            directory::Answer::Changed => Answer::status(410),
            _ => Answer::status(409),
        }
    }

    fn send(&self, to: Option<u16>, here: &LocalFile, range: &Range<u64>, bytes: Bytes) -> Answer {
        let tag = match self.copies.tag(here, range, &bytes) {
            Ok(tag) => tag,
            Err(e) => return Answer::text(500, &format!("the copy cannot be read: {e}")),
        };
        let len = range.end - range.start;
        if let Some(to) = to {
            self.traffic.sent(to, len);
        }
        let status = if len == here.size() { 200 } else { 206 };
        let body = match bytes {
            Bytes::Copy(fd) => Body::File { fd, off: range.start, len },
            Bytes::Read(bytes) => Body::Bytes(bytes),
        };
        let answer = Answer { body, tag: Some(tag), ..Answer::status(status) };
        match status {
            206 => answer.header("Content-Range", format!("bytes {}-{}/{}", range.start, range.end - 1, here.size())),
            _ => answer,
        }
    }
}
