//! This node among those of the job: what it asks of the others, and what it answers them.
//!
//! | module | what it does |
//! |---|---|
//! | [`setup`], [`startup`] | settings, secrets, addresses; whether indexes are still on their way |
//! | [`store`] | this node's copies, handed in by the agent |
//! | [`tables`] | the state that components share, and the components made of it |
//! | [`peer_pool`], [`name_lookup`] | connections to the other nodes; names without an address |
//! | [`peer_files`], [`remote_file`], [`fetcher`] | files of other nodes as sources of bytes |
//! | [`batch_fetch`], [`batch_format`] | small files of another node, several in one request |
//! | [`missing_indexes`], [`log_limit`] | nodes without an index; how often failures are logged |
//! | [`owner_balance`], [`balanced_view`] | owners by exception, kept in step with the nodes |
//! | [`fetch_tracker`] | which files are being read from the PFS |
//! | [`file_directory`], [`wait_graph`] | which node holds a file; which node waits for which |
//! | [`listener`], [`connection_limit`], [`background_runtime`] | the server, how many connections it takes, its runtime |
//! | [`request_handlers`], [`request_paths`], [`request_limits`] | routing of requests, names, bounds |
//! | [`file_requests`], [`local_copy`] | bytes of files for other nodes |
//! | [`relays`], [`receipts`] | pieces of large files that nodes pass on to each other |
//! | [`relay_table`], [`relay_askers`], [`relay_links`] | which node sends which of them to which |
//! | [`send_slots`], [`transfer_time`] | large answers at a time, and how long they take |
//! | [`checksum_table`] | checksums and tags of copies |
//! | [`index_exchange`] | which node scans a root, and the index that comes from there |
//! | [`shared_scan`] | directories that nodes read for the one that scans |
//! | [`name_holders`] | directories that the index does not hold |
//! | [`output_order`] | questions about the order of what jobs write |
//! | [`announcements`], [`holdings`] | what nodes inform each other of; what this one holds |
//! | [`news`], [`outbox`], [`announcer`] | what other nodes are still to be informed of |
//! | [`dir_change_poller`] | changes of the job that no process reports to the agent |
//! | [`corruption_reports`], [`corruption_inspector`] | copies that arrived damaged |
//! | [`status`], [`link_probe`], [`traffic_stats`] | accounts of this node, its links, its traffic |
//!
//! Requests to other nodes are made by the threads that need the answer (copiers, scans), which may
//! block. Requests of other nodes are answered on a small runtime of the node's own, whose blocking
//! work (waiting for a copy, opening it, packing an index) has threads of its own.

mod announcements;
mod announcer;
mod background_runtime;
mod balanced_view;
mod batch_fetch;
mod batch_format;
mod checksum_table;
mod connection_limit;
mod corruption_inspector;
mod corruption_reports;
mod dir_change_poller;
mod fetch_tracker;
mod fetcher;
mod file_directory;
mod file_requests;
mod holdings;
mod index_exchange;
mod link_probe;
mod listener;
mod local_copy;
mod log_limit;
mod missing_indexes;
mod name_holders;
mod name_lookup;
mod news;
mod outbox;
mod output_order;
mod owner_balance;
mod peer_files;
mod peer_pool;
mod receipts;
mod relay_askers;
mod relay_links;
mod relay_table;
mod relays;
mod remote_file;
mod request_handlers;
mod request_limits;
mod request_paths;
mod send_slots;
mod setup;
mod shared_scan;
mod startup;
mod status;
mod store;
mod tables;
mod traffic_stats;
mod transfer_time;
mod wait_graph;

pub use announcements::is_welcome;
pub use batch_format::{batched_lengths, batched_numbers};
pub use corruption_reports::{
    CorruptionReport, decode as decode_corruption_reports, encode as encode_corruption_reports,
};
pub use index_exchange::Obtained;
pub use link_probe::{Link, Said};
pub use name_holders::NameHolders;
pub use receipts::{Receipt, decode as decode_receipts, encode as encode_receipts};
pub use setup::{Introduction, NodeError, NodeOptions};
pub use status::{NodeStatus, PeerStatus};
pub use traffic_stats::{Traffic, TrafficStats};

use super::directory::Members;
use super::http::{self, Key, Metrics};
use super::membership::{self, Membership};
use super::tag::TagKey;
use announcements::Announcements;
use announcer::Announcer;
use background_runtime::BackgroundRuntime;
use corruption_inspector::CorruptionInspector;
use index_exchange::IndexExchange;
use link_probe::LinkProbe;
use listener::Listener;
use local_copy::LocalCopies;
use monarch_abi::segment::Segment;
use monarch_config::Config;
use monarch_storage::held_dir::HeldDir;
use monarch_storage::index::{DirReader, ScanHelpers, ScanProgress};
use monarch_storage::sharing::{FileRef, LocalOutputs, LocalStore, OutputPeers, Peers};
use monarch_storage::tier::Sum;
use output_order::OutputOrder;
use owner_balance::OwnerBalance;
use peer_files::PeerFiles;
use peer_pool::PeerPool;
use request_handlers::PeerRequestHandler;
use shared_scan::SharedScan;
use startup::Startup;
use status::StatusReporter;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use store::Store;
use tables::Tables;
use tokio::runtime::Runtime;

/// How often a node looks what gossip it has to send.
const GOSSIP_TICK: Duration = Duration::from_millis(100);
/// How long a node waits at its end for its goodbye to be sent.
const GOODBYE_TIME: Duration = Duration::from_millis(30);
/// Threads of the server's runtime that do not block.
const SERVER_THREADS: usize = 2;
/// Most threads that wait for copies at a time.
const MAX_READERS: usize = 192;
/// Most answers of several files at a time: each holds up to 64 descriptors.
const MAX_BATCH_ANSWERS: usize = 8;
/// Most threads for all other work that blocks.
const MAX_OTHER_BLOCKING: usize = 64;

/// This node: wires its components, and stands for them towards the agent. Fields: 16, one for each
/// component that the agent reaches. Methods: 26, because the agent reaches them through it.
pub struct Node {
    /// Seed of path hashes.
    seed: u64,
    pool: Arc<PeerPool>,
    store: Arc<Store>,
    startup: Arc<Startup>,
    files: Arc<PeerFiles>,
    announcements: Arc<Announcements>,
    announcer: Arc<Announcer>,
    exchange: Arc<IndexExchange>,
    scans: Arc<SharedScan>,
    inspector: Arc<CorruptionInspector>,
    listener: Arc<Listener>,
    reporter: Arc<StatusReporter>,
    probe: Arc<LinkProbe>,
    outputs: Arc<OutputOrder>,
    names: Arc<NameHolders>,
    owners: Arc<OwnerBalance>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("name", &self.pool.options().name).finish_non_exhaustive()
    }
}

fn runtime(name: &str, threads: usize, blocking: Option<usize>) -> Result<Runtime, NodeError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(threads).thread_name(name).enable_all();
    if let Some(most) = blocking {
        builder.max_blocking_threads(most);
    }
    builder.build().map_err(NodeError::Threads)
}

impl Node {
    /// Starts a node of a job, or returns `None` where the configuration names no others.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub fn start(config: &Config) -> Result<Option<Self>, NodeError> {
        let cluster = &config.cluster;
        let Some(name) = cluster.members.get(cluster.me).filter(|_| !cluster.is_alone()) else { return Ok(None) };
        let intro = Introduction::of(cluster)?;
        let server_runtime = runtime("cluster", SERVER_THREADS, Some(MAX_READERS + MAX_OTHER_BLOCKING))?;
        // Disks that are slow hold up the threads that send files, and must not make this node look
        // dead.
        let gossip = runtime("gossip", 1, None)?;
        let key = Key::new(intro.job.connections());
        let tls = intro.tls(cluster.encryption)?;
        let membership = Membership::start(
            &membership::Options {
                me: name.clone(),
                listen: intro.listen,
                files: intro.listen,
                members: intro.members.clone(),
                is_closed: !cluster.partial,
                key: intro.job.gossip(),
                join_timeout: cluster.join_timeout,
                interval: GOSSIP_TICK,
                encrypt: cluster.encryption == monarch_config::Encryption::Tls,
            },
            gossip.handle(),
        )?;
        let options = NodeOptions {
            name: name.clone(),
            members: intro.members.into_iter().collect(),
            listen: intro.listen,
            placement: cluster.placement,
            encryption: cluster.encryption,
            peer_timeout: cluster.peer_timeout,
            batch_files: cluster.batch_files,
            max_wait: config.wait.max_wait,
            stalled_scan: cluster.join_timeout,
        };
        let listen = http::Options {
            encryption: tls.clone(),
            bandwidth_limit: cluster.bandwidth_limit,
            peer_bandwidth_limit: cluster.peer_bandwidth_limit,
            // (Where torchrun names only the first node, the others are not known.)
            members: (!cluster.partial).then(|| Arc::new(cluster.members.iter().cloned().collect())),
            ..http::Options::new(name, key.clone(), intro.listen)
        };
        let traffic = Arc::<TrafficStats>::default();
        let pool =
            Arc::new(PeerPool::new(options, (key, tls), (membership, BackgroundRuntime::new(gossip)), traffic.clone()));
        let keys = (intro.user.seed(), TagKey::new(intro.job.tags()));
        let node = Self::wire(keys, pool, traffic, (listen, server_runtime))?;
        tracing::info!(name = %node.pool.options().name, listen = %node.pool.options().listen,
            members = cluster.members.len(), placement = ?cluster.placement, encryption = ?cluster.encryption,
            job = cluster.job.as_deref().unwrap_or_default(), "one of several nodes");
        Ok(Some(node))
    }

    /// Makes the components and begins to listen.
    fn wire(
        (seed, tags): (u64, TagKey),
        pool: Arc<PeerPool>,
        traffic: Arc<TrafficStats>,
        (listen, runtime): (http::Options, Runtime),
    ) -> Result<Self, NodeError> {
        let tables = Tables::new(pool.clone(), traffic.clone());
        let known = (tables.sums.clone(), tags.clone());
        let copies =
            Arc::new(LocalCopies::new(tables.store.clone(), known, traffic.clone(), pool.options().peer_timeout));
        let reporter = Arc::new(StatusReporter::new(pool.clone(), tables.store.clone(), traffic.clone()));
        let probe = Arc::new(LinkProbe::new(pool.clone(), reporter.clone()));
        let exchange = Arc::new(IndexExchange::new(pool.clone(), tables.election.clone(), tables.startup.clone()));
        let scans = Arc::new(SharedScan::new(pool.clone(), tables.election.clone()));
        let announcements = Arc::new(tables.announcements());
        let outputs = Arc::new(OutputOrder::new(pool.clone()));
        let names = Arc::new(NameHolders::new(pool.clone()));
        let handler = PeerRequestHandler {
            files: Arc::new(tables.file_requests(&copies)),
            exchange: exchange.clone(),
            scans: scans.clone(),
            announcements: announcements.clone(),
            reports: tables.reports.clone(),
            reporter: reporter.clone(),
            probe: probe.clone(),
            outputs: outputs.clone(),
            names: names.clone(),
            pool: pool.clone(),
            store: tables.store.clone(),
            startup: tables.startup.clone(),
            relays: tables.relays.clone(),
            readers: tokio::sync::Semaphore::new(MAX_READERS),
            batches: Arc::new(tokio::sync::Semaphore::new(MAX_BATCH_ANSWERS)),
        };
        let listener = Arc::new(Listener::start(listen, Arc::new(handler), BackgroundRuntime::new(runtime))?);
        listener.admit(&pool.view());
        let announcer = Arc::new(tables.announcer(&listener));
        let inspector = Arc::new(CorruptionInspector::new(tables.reports.clone(), pool.clone(), copies, traffic));
        let fetcher = Arc::new(tables.fetcher(tags));
        let Tables { store, startup, sums, news, owners, .. } = tables;
        let files = Arc::new(PeerFiles { fetcher, sums, news });
        Ok(Self {
            seed,
            pool,
            store,
            startup,
            files,
            announcements,
            announcer,
            exchange,
            scans,
            inspector,
            listener,
            reporter,
            probe,
            outputs,
            names,
            owners,
        })
    }

    /// Connects the node with this node's copies; the other nodes are returned, as the tiering
    /// engine sees them. The node does not keep the store alive.
    #[must_use]
    pub fn connect(&self, store: &Arc<dyn LocalStore>) -> Arc<dyn Peers> {
        self.store.set(store);
        self.files.clone()
    }

    /// The other nodes, as output roots see them.
    #[must_use]
    pub fn output_peers(&self) -> Arc<dyn OutputPeers> {
        self.outputs.clone()
    }

    /// Connects the node with this node's output roots, which it does not keep alive.
    pub fn connect_outputs(&self, outputs: &Arc<dyn LocalOutputs>) {
        self.outputs.set(outputs);
    }

    /// Directories that the index does not hold: where they are, and which of them are here.
    #[must_use]
    pub const fn names(&self) -> &Arc<NameHolders> {
        &self.names
    }

    /// Starts the threads that inform other nodes, until `stop` is set. [`Node::connect`] comes
    /// first.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn serve(&self, stop: &Arc<AtomicBool>) -> io::Result<()> {
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
        };
        let (inspector, until) = (self.inspector.clone(), stop.clone());
        spawn("complaints", Box::new(move || inspector.run(&until)))?;
        if name_lookup::is_needed(self.pool.options()) {
            let (pool, until) = (self.pool.clone(), stop.clone());
            spawn("names", Box::new(move || name_lookup::run(&pool, &until)))?;
        }
        let (receipts, pool, until) = (self.files.fetcher.receipts.clone(), self.pool.clone(), stop.clone());
        spawn("receipts", Box::new(move || receipts.run(&pool, &until)))?;
        let (announcer, until) = (self.announcer.clone(), stop.clone());
        spawn("news", Box::new(move || announcer.run(&until)))
    }

    /// Takes leave of the other nodes: none asks this one from now on. Takes 30 ms.
    pub fn stop(&self) {
        self.listener.stop();
        self.pool.membership().leave();
        // The goodbye is sent by a thread of its own.
        std::thread::sleep(GOODBYE_TIME);
    }

    /// Notes that indexes of an agent that died are being taken over, or have been: until then
    /// other nodes send again what they have sent of them.
    pub fn adopts(&self, adopting: bool) {
        self.startup.set_adopting(adopting);
    }

    /// Notes the checksum of a copy.
    pub fn note_sum(&self, file: &FileRef, sum: Sum) {
        self.files.note_sum(file, sum);
    }

    /// Notes a file that the job on this node has changed.
    pub fn note_changed(&self, file: FileRef) {
        self.files.note_changed(&file);
    }

    /// The seed of path hashes: the same on all nodes and in later jobs.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The nodes as this one sees them.
    #[must_use]
    pub fn view(&self) -> Arc<Members> {
        self.pool.view()
    }

    /// How many other nodes share copies, as far as this one knows; those that have gone do not.
    #[must_use]
    pub fn sharers(&self) -> usize {
        self.pool.sharers()
    }

    /// Asks every node that answers what it holds of this node's files, before an index is served.
    /// All at a time, for a second at most. Balances what the nodes own, which takes longer where
    /// files times nodes exceed a few hundred million.
    pub fn join(&self, segment: &Segment<'static>) {
        self.owners.balance(segment);
        self.announcements.join(segment);
        // The answers may have named nodes that were not known.
        self.owners.balance(segment);
    }

    /// Announces the files of an index that is served from now on to the nodes that answer for
    /// them.
    pub fn announce(&self, segment: &Segment<'static>) {
        self.announcements.announce(segment);
    }

    /// Forgets an index that is not served any more.
    pub fn leave(&self, index: &[u8; 16]) {
        self.announcements.leave(index);
        self.owners.forget(index);
    }

    /// The index of a root with at most `max_index_bytes`, in a file in `dir`, or the word that
    /// this node is to make it. [`Node::offer`] or [`Node::give_up`] is to follow. Blocks.
    ///
    /// # Errors
    /// When the scan was cancelled, or there is no room for the index.
    pub fn obtain(
        &self,
        root: u64,
        max_index_bytes: u64,
        dir: &Arc<HeldDir>,
        progress: &Arc<ScanProgress>,
        reader: Option<Arc<DirReader>>,
    ) -> io::Result<Obtained> {
        if let Some(reader) = reader {
            self.scans.begin(root, reader);
        }
        let obtained = self.exchange.obtain(root, max_index_bytes, dir, progress);
        self.scans.end(root);
        obtained
    }

    /// The nodes that can help this one to scan a root: those that wait for its index.
    #[must_use]
    pub fn scan_helpers(&self, root: u64) -> Arc<dyn ScanHelpers> {
        self.scans.helpers(root)
    }

    /// Offers the index of a root to other nodes: it is there, in a file of a directory.
    pub fn offer(&self, root: u64, segment: Segment<'static>, file: (Arc<HeldDir>, String), fresh: bool) {
        self.exchange.offer(root, segment, file, fresh);
    }

    /// Withdraws an index that cannot be had from here any more, or never came.
    pub fn give_up(&self, root: u64) {
        self.exchange.give_up(root);
    }

    /// The account of this node.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        self.reporter.status(false)
    }

    /// The same without what takes a walk over all files: what is owned and held.
    #[must_use]
    pub fn brief_status(&self) -> NodeStatus {
        self.reporter.status(true)
    }

    /// The accounts of all nodes, this one's first. Asks them; blocks.
    #[must_use]
    pub fn statuses(&self) -> Vec<Said<NodeStatus>> {
        self.probe.statuses()
    }

    /// The links of all nodes, by their own accounts, this one's first. Asks them; blocks.
    #[must_use]
    pub fn checks(&self) -> Vec<Said<Vec<Link>>> {
        self.probe.checks()
    }

    /// Counts of what other nodes were answered; `None` once the node has stopped.
    #[must_use]
    pub fn server_metrics(&self) -> Option<Arc<Metrics>> {
        self.listener.metrics()
    }
}
