//! Answers to other nodes.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/files/<index>/<id>[?keep]` | bytes of a file, with `Monarch-Sum`; 307 and `Monarch-Node`: ask that one; 409: read the PFS (with `Monarch-Keep`: and keep it); 410: it has changed |
//! | `POST /v1/bid/<root>` | where this node is with the index of a root |
//! | `GET /v1/index/<root>[?direct]` | the index, packed; 307 and `Monarch-Node`: get it there |
//! | `POST /v1/join` | the files held here that the newcomer answers for |
//! | `POST /v1/held`, `/v1/changed` | taken note of |
//! | `POST /v1/damaged` | taken note of: what of this node's files arrived damaged |
//! | `GET /v1/status[?short]` | what this node is and has, as JSON; without counting files |
//! | `GET /v1/check` | what its links to all others are like, as JSON |
//! | `GET /v1/probe?<bytes>`, `POST /v1/probe` | so many bytes; nothing: for `monarch cluster check` |
//!
//! A file is named by index and number, so that nothing else of this node can be asked for.

use super::bounds::{AT_ONCE, NEWCOMER};
use super::local_copy::{Bytes, Here};
use super::wait_graph::Waits;
use super::{FileRef, Node, hex, lock, pure, unhex};
use crate::cluster::directory::{self, Asked, Local, MAX_HOPS};
use crate::cluster::election;
use crate::cluster::http::{Answer, Answering, Body, ByteRange, Handler, Method, Request};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Most bytes that a probe sends.
const PROBE: u64 = 64 << 20;
/// How often it is looked whether an index has come.
const LOOK: Duration = Duration::from_millis(10);

/// What others ask of a node.
pub(super) struct PeerRequestHandler(pub(super) Arc<Node>);

impl Handler for PeerRequestHandler {
    fn answer<'a>(&'a self, peer: &'a str, request: Request) -> Answering<'a> {
        Box::pin(async move {
            let path = request.path.clone();
            let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
            match (request.method, parts.as_slice()) {
                (Method::Get | Method::Head, ["v1", "files", index, id]) => self.file(peer, index, id, &request).await,
                (Method::Get, ["v1", "index", root]) => self.index(peer, root, request.query.as_deref()).await,
                (Method::Post, ["v1", "bid", root]) => self.bid(peer, root),
                (Method::Post, ["v1", "join"]) => {
                    self.work(peer, move |node, peer| node.joins(peer, &request.body)).await
                }
                (Method::Post, ["v1", "held"]) => {
                    self.work(peer, move |node, peer| node.heard_held(peer, &request.body)).await
                }
                (Method::Post, ["v1", "changed"]) => {
                    self.work(peer, move |node, peer| node.heard_changed(peer, &request.body)).await
                }
                (Method::Post, ["v1", "damaged"]) => self.0.heard_damaged(peer, &request.body),
                (Method::Get, ["v1", "status"]) => {
                    let short = request.query.as_deref() == Some("short");
                    self.work(peer, move |node, _| node.status_answer(short)).await
                }
                (Method::Get, ["v1", "check"]) => self.work(peer, |node, _| node.check_answer()).await,
                (Method::Get, ["v1", "probe"]) => probe(request.query.as_deref()),
                (Method::Post, ["v1", "probe"]) => Answer::status(204),
                _ => Answer::text(404, "nothing of that name; see docs/PROTOCOL.md"),
            }
        })
    }
}

/// An answer that is under way, for as long as this lives. (It may outlive the node, and must not
/// be what keeps it.)
struct Counted(Arc<AtomicUsize>);

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

fn probe(query: Option<&str>) -> Answer {
    match query.unwrap_or("0").parse::<u64>() {
        Ok(n) if n <= PROBE => Answer::bytes(vec![0; n as usize]),
        _ => Answer::text(400, "the query of a probe is a number of bytes, at most 64 MiB"),
    }
}

impl PeerRequestHandler {
    /// Work that blocks, for the node called `peer`.
    async fn work(&self, peer: &str, work: impl FnOnce(&Arc<Node>, &str) -> Answer + Send + 'static) -> Answer {
        let (node, peer) = (self.0.clone(), peer.to_owned());
        let done = tokio::task::spawn_blocking(move || work(&node, &peer)).await;
        done.unwrap_or_else(|_| Answer::text(500, "the work for the answer was broken off"))
    }

    async fn file(&self, peer: &str, index: &str, id: &str, request: &Request) -> Answer {
        let (Some(index), Ok(id)) = (unhex(index), id.parse::<u32>()) else {
            return Answer::text(400, "a file is named by 32 hexadecimal digits and a number");
        };
        let keeps = request.query.as_deref() == Some("keep");
        let (range, hops) = (request.range, request.hops);
        let counted = Counted::new(&self.0.answering);
        self.awaits_index(index).await;
        if let Some(answer) = self.0.quick_answer(peer, (index, id), range, keeps, hops) {
            return answer.holding(counted);
        }
        // Those that wait for the PFS leave threads to what nodes tell each other.
        let _thread = self.0.readers.acquire().await;
        let answer = self.work(peer, move |node, peer| {
            let Some((here, file)) = node.here(index, id) else {
                return Answer::text(404, "no file of an index that is served here");
            };
            let Some(mut range) = range.map_or(Some(0..here.size()), |r| r.resolve(here.size())) else {
                return Answer::status(416).header("Content-Range", format!("bytes */{}", here.size()));
            };
            if !here.is_complete() {
                // What is being made is read into memory.
                range.end = range.end.min(range.start + AT_ONCE);
            }
            node.file_answer(peer, (&here, &file), &range, keeps, hops)
        });
        answer.await.holding(counted)
    }

    /// A node that has just come up is asked before it has the index: a moment later it has.
    async fn awaits_index(&self, index: [u8; 16]) {
        let until = Instant::now() + NEWCOMER;
        let is_new = || self.0.started.elapsed() < NEWCOMER || self.0.election.is_pending();
        let is_missing = || self.0.tiering().is_none_or(|d| d.segments.segment_of(index).is_none());
        while is_missing() && is_new() && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
    }

    fn bid(&self, peer: &str, root: &str) -> Answer {
        let Some(root) = number(root) else { return Answer::text(400, "a root is named by 16 hexadecimal digits") };
        let reply = self.0.election.heard(root, peer, &self.0.options.name);
        Answer::bytes(reply.text().into_bytes())
    }

    async fn index(&self, peer: &str, root: &str, query: Option<&str>) -> Answer {
        let Some(root) = number(root) else { return Answer::text(400, "a root is named by 16 hexadecimal digits") };
        loop {
            match self.0.election.asked(root, peer, query == Some("direct")) {
                election::Answer::Wait => tokio::time::sleep(LOOK).await,
                election::Answer::No => return Answer::text(404, "no index of that root here"),
                election::Answer::From(parent) => return Answer::status(307).header("Monarch-Node", parent),
                election::Answer::Send(offer) => {
                    return self
                        .work(peer, move |_, _| match offer.bytes() {
                            Ok(bytes) => Answer::shared(&bytes, None),
                            Err(e) => Answer::text(500, &format!("the index cannot be read: {e}")),
                        })
                        .await;
                }
            }
        }
    }
}

fn number(text: &str) -> Option<u64> {
    unhex::<8>(text).map(u64::from_be_bytes)
}

/// What a root is called in requests.
pub(super) fn root_name(root: u64) -> String {
    hex(&root.to_be_bytes())
}

impl Node {
    /// The answer where nothing has to be waited for: a complete copy, whose sum is known.
    fn quick_answer(
        &self,
        peer: &str,
        (index, id): ([u8; 16], u32),
        range: Option<ByteRange>,
        keeps: bool,
        hops: u8,
    ) -> Option<Answer> {
        let (here, file) = self.here(index, id).filter(|(here, _)| here.is_complete())?;
        let range = range.map_or(Some(0..here.size()), |r| r.resolve(here.size()))?;
        let view = self.view();
        let from = view.number(peer);
        let asked = Asked { from, hops, keeps, busy: self.is_busy() };
        let answer = lock(&self.residency).answer(&pure(&file), &view, &asked, Local::Resident);
        let serves = answer == directory::Answer::Serve && self.knows_sum(&here, &file, &range);
        let copy = serves.then(|| self.copy(&here)).flatten()?;
        Some(self.send_file(from, (&here, &file), &range, copy))
    }

    fn file_answer(&self, peer: &str, of: (&Here, &FileRef), range: &Range<u64>, keeps: bool, hops: u8) -> Answer {
        let (here, file) = of;
        let view = self.view();
        let from = view.number(peer);
        // Who is to keep a file for which there is no room here has to be willing; it may say no by
        // itself.
        let asked = |local| Asked { from, hops, keeps: keeps || local == Local::NoRoom, busy: self.is_busy() };
        let (standing, mut answer, promise) =
            self.answer_for(file, &view, |waits| Self::standing(here, file, waits), asked);
        if let Local::Coming(Some(source)) = standing
            && from != Some(source)
            && hops < MAX_HOPS
            && let Some(member) = view.get(source)
        {
            // Nobody waits for one who waits for another: they might form a circle.
            return Answer::status(307).header("Monarch-Node", member.name.to_string());
        }
        if let directory::Answer::Serve | directory::Answer::FetchAndServe = answer {
            let fetches = answer == directory::Answer::FetchAndServe;
            if fetches {
                // (Not only when it has been passed on often enough: it was decided just now.)
                lock(&self.forced).insert(*file);
            }
            let got = self.bytes(here, range);
            // What was there after all was not fetched.
            lock(&self.forced).remove(file);
            match got {
                Ok(bytes) => {
                    lock(&self.residency).sent(&pure(file), &self.view(), &asked(standing));
                    return self.send_file(from, of, range, bytes);
                }
                Err(Some(e)) => return Answer::text(500, &format!("the copy cannot be read: {e}")),
                Err(None) => {}
            }
            self.call_off(here);
            drop(promise);
            let failed = |waits: &Waits| match Self::standing(here, file, waits) {
                Local::Changed => Local::Changed,
                _ => Local::NoRoom,
            };
            answer = self.answer_for(file, &view, failed, asked).1;
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

    fn send_file(&self, to: Option<u16>, (here, file): (&Here, &FileRef), range: &Range<u64>, bytes: Bytes) -> Answer {
        let sum = match self.sum(here, file, range, &bytes) {
            Ok(sum) => sum,
            Err(e) => return Answer::text(500, &format!("the copy cannot be read: {e}")),
        };
        let len = range.end - range.start;
        if let Some(to) = to {
            self.figures.sent(to, len);
        }
        let status = if len == here.size() { 200 } else { 206 };
        let body = match bytes {
            Bytes::Copy(fd) => Body::File { fd, off: range.start, len },
            Bytes::Read(bytes) => Body::Bytes(bytes),
        };
        let answer = Answer { body, ..Answer::status(status) }.header("Monarch-Sum", format!("{sum:016x}"));
        match status {
            206 => answer.header("Content-Range", format!("bytes {}-{}/{}", range.start, range.end - 1, here.size())),
            _ => answer,
        }
    }
}
