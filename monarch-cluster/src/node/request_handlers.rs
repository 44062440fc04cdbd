//! Routes requests of other nodes to what answers them.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/files/<index>/<id>[?keep&piece]` | bytes of a file, with `Monarch-Tag`; 307 and `Monarch-Node`: ask that one; 409: read the PFS (with `Monarch-Keep`: and keep it); 410: it has changed |
//! | `POST /v1/files/<index>[?keep]` | small files of that index, as far as there are complete copies, in one answer |
//! | `POST /v1/bid/<root>` | where this node is with the index of a root |
//! | `GET /v1/index/<root>[?direct]` | the index, packed; 307 and `Monarch-Node`: get it there |
//! | `POST /v1/scan/<root>` | listings of directories, for the node that scans that root |
//! | `POST /v1/names/<index>` | a directory that the index does not hold, named by its path; 404: it is left to the PFS |
//! | `POST /v1/marks` | taken note of: what the job has changed in such directories |
//! | `POST /v1/join` | the files held here that the newcomer answers for |
//! | `POST /v1/held`, `/v1/changed` | taken note of |
//! | `POST /v1/got` | taken note of: pieces of large files that the sender has |
//! | `POST /v1/damaged` | taken note of: bytes of this node's copies that arrived damaged |
//! | `POST /v1/outputs/<root>` | how far the order of an output root is here |
//! | `GET /v1/status[?short]` | what this node is and has, as JSON; without counting files |
//! | `GET /v1/check` | what its links to all others are like, as JSON |
//! | `GET /v1/probe?<bytes>`, `POST /v1/probe` | that number of bytes; nothing: for `monarch cluster check` |
//!
//! A file is named by index and number, so that nothing else of this node can be asked for. A
//! directory is named by its path, and read beneath a root whose index this node waits for.

use super::announcements::Announcements;
use super::batch_format;
use super::corruption_reports::{self, CorruptionReports};
use super::file_requests::{FileRequest, FileRequests};
use super::index_exchange::IndexExchange;
use super::link_probe::LinkProbe;
use super::name_holders::NameHolders;
use super::output_order::OutputOrder;
use super::peer_pool::PeerPool;
use super::receipts;
use super::relays::Relays;
use super::request_limits::{INDEX_ARRIVAL_TIMEOUT, MAX_REQUEST_BYTES};
use super::request_paths::{Purpose, file_query, root_of, unhex};
use super::shared_scan::SharedScan;
use super::startup::Startup;
use super::status::StatusReporter;
use super::store::Store;
use crate::election;
use crate::http::{Answer, Answering, Handler, Method, Request};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Most bytes that a probe sends.
const MAX_PROBE_BYTES: u64 = 64 << 20;
/// How often it is looked whether an index has come.
const INDEX_POLL_PERIOD: Duration = Duration::from_millis(10);
/// How long a batch waits for others to be sent; after that its files are asked for one by one.
const BATCH_PLACE_TIMEOUT: Duration = Duration::from_secs(2);

/// What the answers are made by. It runs on the runtime of the server; work that blocks has threads
/// of its own there. Fields: 15, one for each component that answers, and what bounds them.
pub(super) struct PeerRequestHandler {
    pub(super) files: Arc<FileRequests>,
    pub(super) exchange: Arc<IndexExchange>,
    pub(super) scans: Arc<SharedScan>,
    pub(super) announcements: Arc<Announcements>,
    pub(super) reports: Arc<CorruptionReports>,
    pub(super) reporter: Arc<StatusReporter>,
    pub(super) probe: Arc<LinkProbe>,
    pub(super) outputs: Arc<OutputOrder>,
    pub(super) names: Arc<NameHolders>,
    pub(super) pool: Arc<PeerPool>,
    pub(super) store: Arc<Store>,
    pub(super) startup: Arc<Startup>,
    pub(super) relays: Arc<Relays>,
    /// Threads that may wait for copies.
    pub(super) readers: Semaphore,
    /// Answers of several files at a time, to the last byte of each.
    pub(super) batches: Arc<Semaphore>,
}

impl Handler for PeerRequestHandler {
    fn answer<'a>(&'a self, peer: &'a str, request: Request) -> Answering<'a> {
        Box::pin(async move {
            let path = request.path.clone();
            let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
            match (request.method, parts.as_slice()) {
                (Method::Get | Method::Head, ["v1", "files", index, id]) => self.file(peer, index, id, &request).await,
                (Method::Post, ["v1", "files", index]) => self.batch(peer, index, &request).await,
                (Method::Get, ["v1", "index", root]) => self.index(peer, root, request.query.as_deref()).await,
                (Method::Post, ["v1", "bid", root]) => self.bid(peer, root),
                (Method::Post, ["v1", "scan", root]) => {
                    let (of, root) = (self.scans.clone(), (*root).to_owned());
                    work(move || of.answer(&root, &request.body)).await
                }
                (Method::Post, ["v1", "names", index]) => {
                    let (of, index) = (self.names.clone(), (*index).to_owned());
                    work(move || of.answer(&index, &request.body)).await
                }
                (Method::Post, ["v1", "marks"]) => {
                    let of = self.announcements.clone();
                    work(move || of.hear_marks(&request.body)).await
                }
                (Method::Post, ["v1", "join"]) => {
                    let (of, peer) = (self.announcements.clone(), peer.to_owned());
                    work(move || of.welcome(&peer, &request.body)).await
                }
                (Method::Post, ["v1", "held"]) => {
                    let (of, peer) = (self.announcements.clone(), peer.to_owned());
                    work(move || of.hear_held(&peer, &request.body)).await
                }
                (Method::Post, ["v1", "changed"]) => {
                    let of = self.announcements.clone();
                    work(move || of.hear_changed(&request.body)).await
                }
                (Method::Post, ["v1", "got"]) => self.got(peer, &request.body),
                (Method::Post, ["v1", "damaged"]) => self.damaged(peer, &request.body),
                (Method::Post, ["v1", "outputs", root]) => {
                    let (of, peer, root) = (self.outputs.clone(), peer.to_owned(), (*root).to_owned());
                    work(move || of.answer(&peer, &root, &request.body)).await
                }
                (Method::Get, ["v1", "status"]) => {
                    let (of, short) = (self.reporter.clone(), request.query.as_deref() == Some("short"));
                    work(move || of.answer(short)).await
                }
                (Method::Get, ["v1", "check"]) => {
                    let of = self.probe.clone();
                    work(move || of.answer()).await
                }
                (Method::Get, ["v1", "probe"]) => probe(request.query.as_deref()),
                (Method::Post, ["v1", "probe"]) => Answer::status(204),
                _ => Answer::text(404, "nothing of that name; see docs/PROTOCOL.md"),
            }
        })
    }
}

fn probe(query: Option<&str>) -> Answer {
    match query.unwrap_or("0").parse::<u64>() {
        Ok(n) if n <= MAX_PROBE_BYTES => Answer::bytes(vec![0; n as usize]),
        _ => Answer::text(400, "the query of a probe is a number of bytes, at most 64 MiB"),
    }
}

/// Work that blocks.
async fn work(work: impl FnOnce() -> Answer + Send + 'static) -> Answer {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Answer::text(500, "the work for the answer was broken off"))
}

impl PeerRequestHandler {
    async fn file(&self, peer: &str, index: &str, id: &str, request: &Request) -> Answer {
        let (Some(index), Ok(id)) = (unhex(index), id.parse::<u32>()) else {
            return Answer::text(400, "a file is named by 32 hexadecimal digits and a number");
        };
        let (keeps, purpose) = file_query(request.query.as_deref());
        let (range, hops) = (request.range, request.hops);
        self.wait_for_index(index).await;
        let asked = FileRequest { peer, keeps, purpose, hops };
        // Those that wait for their turn are no work for this node.
        let (relayed, asking) = self.files.turn(asked, (index, id), range).await;
        if let Some(answer) = relayed {
            return answer;
        }
        let counted = self.files.count();
        let is_relay = purpose == Purpose::Relayed;
        if let Some(answer) = (!is_relay).then(|| self.files.quick_answer(asked, (index, id), range)).flatten() {
            return self.files.sent_in_turn(answer, asking, counted).await;
        }
        // Those that wait for the PFS leave threads to what nodes announce to each other.
        let thread = self.readers.acquire().await;
        let (files, peer) = (self.files.clone(), peer.to_owned());
        let answer = work(move || {
            let Some(here) = files.find(index, id) else {
                return Answer::text(404, "no file of an index that is served here");
            };
            let Some(mut range) = range.map_or(Some(0..here.size()), |r| r.resolve(here.size())) else {
                return Answer::status(416).header("Content-Range", format!("bytes */{}", here.size()));
            };
            if !here.is_complete() {
                // What is being made is read into memory.
                range.end = range.end.min(range.start + MAX_REQUEST_BYTES);
            }
            match is_relay {
                true => files.relay(&peer, &here, &range),
                false => files.answer(FileRequest { peer: &peer, keeps, purpose, hops }, &here, &range),
            }
        });
        let answer = answer.await;
        drop(thread);
        self.files.sent_in_turn(answer, asking, counted).await
    }

    async fn batch(&self, peer: &str, index: &str, request: &Request) -> Answer {
        let (Some(index), Some(ids)) = (unhex(index), batch_format::decode_request(&request.body)) else {
            return Answer::text(400, "a batch is of one index, 32 hexadecimal digits, and names 1 to 64 files");
        };
        self.wait_for_index(index).await;
        if self.store.served_index(&index).is_none() {
            return Answer::text(404, "no file of an index that is served here");
        }
        // Each holds open files, and a thread for a moment.
        let place = timeout(BATCH_PLACE_TIMEOUT, self.batches.clone().acquire_owned()).await;
        let Ok(Ok(place)) = place else { return Answer::bytes(batch_format::encode_front(&vec![None; ids.len()])) };
        let counted = self.files.count();
        let (keeps, _) = file_query(request.query.as_deref());
        let (files, peer) = (self.files.clone(), peer.to_owned());
        let answer = work(move || files.batch(&peer, keeps, index, &ids)).await;
        self.files.batch_in_turn(answer, counted, place).await
    }

    /// A node that has just come up is asked before it has the index: a moment later it has.
    async fn wait_for_index(&self, index: [u8; 16]) {
        let until = Instant::now() + INDEX_ARRIVAL_TIMEOUT;
        let is_missing = || self.store.served_index(&index).is_none();
        while is_missing() && self.startup.expects_index(Instant::now()) && Instant::now() < until {
            tokio::time::sleep(INDEX_POLL_PERIOD).await;
        }
    }

    fn bid(&self, peer: &str, root: &str) -> Answer {
        let Some(root) = root_of(root) else { return Answer::text(400, "a root is named by 16 hexadecimal digits") };
        let reply = self.exchange.election().heard(root, peer, &self.pool.options().name);
        Answer::bytes(reply.text().into_bytes())
    }

    async fn index(&self, peer: &str, root: &str, query: Option<&str>) -> Answer {
        let Some(root) = root_of(root) else { return Answer::text(400, "a root is named by 16 hexadecimal digits") };
        loop {
            match self.exchange.election().asked(root, peer, query == Some("direct")) {
                election::Answer::Wait => tokio::time::sleep(INDEX_POLL_PERIOD).await,
                election::Answer::No => return Answer::text(404, "no index of that root here"),
                election::Answer::From(parent) => return Answer::status(307).header("Monarch-Node", parent),
                election::Answer::Send(offer) => {
                    return work(move || match offer.bytes() {
                        Ok(bytes) => Answer::shared(&bytes, None),
                        Err(e) => Answer::text(500, &format!("the index cannot be read: {e}")),
                    })
                    .await;
                }
            }
        }
    }

    /// Takes receipts for pieces of large files.
    fn got(&self, peer: &str, body: &[u8]) -> Answer {
        let Some(receipts) = receipts::decode(body) else {
            return Answer::text(400, "a receipt names an index, a file and up to 1 GiB of it; a message holds 256");
        };
        let Some(from) = self.pool.view().number(peer) else { return Answer::status(409) };
        self.relays.has(from, &receipts);
        Answer::status(204)
    }

    /// Takes reports of damaged copies.
    fn damaged(&self, peer: &str, body: &[u8]) -> Answer {
        let Some(reports) = corruption_reports::decode(body) else {
            return Answer::text(400, "a complaint names an index, a file and up to 4 MiB of it; a message holds 256");
        };
        let Some(from) = self.pool.view().number(peer) else { return Answer::status(409) };
        self.reports.hear(from, reports, Instant::now());
        Answer::status(204)
    }
}
