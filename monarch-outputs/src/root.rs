//! One output root in use: its staging directory and its threads.

use crate::ahead;
use crate::copy::{CopyContext, MayCopy};
use crate::drain::{Drain, DrainView};
use crate::errors::OutputsError;
use crate::finder::Finder;
use crate::kept;
use crate::latency::LatencyLimit;
use crate::lease::LeaseWatch;
use crate::load::{Loaded, load};
use crate::newer::NewerCheck;
use crate::node_order::NodeOrder;
use crate::order::{Answer, Ask, Find, Found, NodeId};
use crate::order_keeper::{OrderKeeper, OrderView};
use crate::published::PublishedLog;
use crate::publisher::Publisher;
use crate::room::{Room, TierSpace};
use crate::shared_plan::SharedPlan;
use crate::snapshot;
use crate::staging::StagingDir;
use crate::status::OutputStatus;
use crate::target::OutputTarget;
use monarch_abi::outputs::names::Staged;
use monarch_storage::sharing::OutputPeers;
use monarch_storage::token_bucket::TokenBucket;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// How often files that grow are looked at.
const ROOM_TICK: Duration = Duration::from_millis(20);
/// How often the disk is looked at while no file grows.
const IDLE_ROOM_TICK: Duration = Duration::from_secs(1);
/// How often it is looked whether the drain has looked.
const LOOK_POLL: Duration = Duration::from_micros(300);
/// How long a snapshot waits for what is pending before it.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(60);
/// Over which time the rate of copies is told.
const RATE_TIME: Duration = Duration::from_secs(1);

/// What a root needs of the agent.
#[derive(Clone)]
pub struct RootOptions {
    /// Space of the tier.
    pub space: TierSpace,
    /// Most bytes of files that are not published.
    pub max_pending: Option<u64>,
    /// Most bytes a second, of all roots.
    pub bandwidth: Option<Arc<TokenBucket>>,
    /// Demand reads first.
    pub may_copy: MayCopy,
    /// Whether published files are kept as clean copies.
    pub keeps_clean: bool,
    /// Whether records behind damage in the journal are published, without the lost ones.
    pub is_salvage: bool,
    /// Whether what the PFS has got since the job wrote something is kept.
    pub keeps_newer: bool,
    /// The other nodes of the job, with whose entries this root's are ordered.
    pub peers: Option<Arc<dyn OutputPeers>>,
    /// How long a process waits for them to publish what it does not find.
    pub peer_wait: Duration,
}

impl std::fmt::Debug for RootOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RootOptions").field("max_pending", &self.max_pending).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Rate {
    since: Instant,
    bytes: u64,
    rate: u64,
}

/// What the threads of a root share.
#[derive(Debug)]
struct Shared {
    context: Arc<CopyContext>,
    room: Arc<Room>,
    view: Arc<DrainView>,
    plan: Arc<SharedPlan>,
    order: Arc<OrderView>,
    is_stopping: AtomicBool,
    rate: Mutex<Rate>,
}

/// An output root in use.
#[derive(Debug)]
pub struct RootDrain {
    staging: Arc<StagingDir>,
    shared: Arc<Shared>,
    finder: Option<Arc<Finder>>,
    threads: Vec<JoinHandle<()>>,
}

impl RootDrain {
    /// Takes in what lies in the staging directory, and starts to drain it.
    ///
    /// # Errors
    /// [`OutputsError`].
    pub fn start(
        staging: StagingDir,
        target: Arc<dyn OutputTarget>,
        options: &RootOptions,
    ) -> Result<Self, OutputsError> {
        let staging = Arc::new(staging);
        let Loaded { planner, reader, log, entries, clean } = load(&staging, options.is_salvage)?;
        let newer = NewerCheck::new(staging.clone(), options.keeps_newer, &entries);
        ahead::keep_for(&staging);
        let kept = kept::list(staging.path()).map_err(OutputsError::io("read", staging.path()))?;
        let files: Vec<Staged> = planner.files().map(|file| file.staged).collect();
        let peers = options.peers.as_ref();
        let order = peers.map(|peers| NodeOrder::load(&staging, peers.me(), &planner)).transpose()?;
        let plan = Arc::new(SharedPlan::new(staging.clone(), planner, reader, order));
        let room = Room::new(staging.clone(), options.space.clone(), options.max_pending, files.into_iter(), clean);
        let context = CopyContext {
            staging: staging.clone(),
            target,
            leases: LeaseWatch::default(),
            bandwidth: options.bandwidth.clone(),
            may_copy: options.may_copy.clone(),
            latency: LatencyLimit::default(),
            copied_bytes: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
        };
        let shared = Arc::new(Shared {
            context: Arc::new(context),
            room: Arc::new(room),
            view: Arc::default(),
            plan,
            order: Arc::default(),
            is_stopping: AtomicBool::new(false),
            rate: Mutex::new(Rate { since: Instant::now(), bytes: 0, rate: 0 }),
        });
        // The root is what the agent opens now.
        let state = staging.state();
        [&state.root_dev, &state.root_ino].into_iter().for_each(|word| word.store(0, Ordering::Relaxed));
        for kept in kept {
            let note = format!("{}: {}", kept.shown(), kept.why());
            tracing::warn!("outputs below {}: {note}", staging.info().root);
            shared.view.backlog().note(note);
        }
        let mut root = Self { staging, shared, finder: None, threads: Vec::new() };
        root.spawn((log, newer), options)?;
        Ok(root)
    }

    fn spawn(&mut self, log: (PublishedLog, NewerCheck), options: &RootOptions) -> Result<(), OutputsError> {
        let path = self.staging.path().to_owned();
        let fail = |source| OutputsError::Io { what: "start a thread for", path: path.clone(), source };
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let shared = self.shared.clone();
        self.threads.push(thread("outputs-lease").spawn(move || shared.context.leases.run()).map_err(fail)?);
        let shared = self.shared.clone();
        self.threads.push(thread("outputs-room").spawn(move || shared.keep_room()).map_err(fail)?);
        if let Some(peers) = options.peers.clone() {
            let (plan, view) = (self.shared.plan.clone(), self.shared.order.clone());
            let number = root_number(&self.staging.info().path());
            let keeper = OrderKeeper::new(plan.clone(), peers.clone(), number, view);
            let shared = self.shared.clone();
            let keep = move || keeper.run(&shared.is_stopping);
            self.threads.push(thread("outputs-order").spawn(keep).map_err(fail)?);
            match Finder::new(plan, peers, number, options.peer_wait).map(Arc::new) {
                Ok(finder) => {
                    self.finder = Some(finder.clone());
                    self.threads.push(thread("outputs-finder").spawn(move || finder.serve()).map_err(fail)?);
                }
                // A tier on a file system without sockets.
                Err(e) => tracing::warn!("what other nodes have written is found when it is published: {e}"),
            }
        }
        let (shared, keeps_clean) = (self.shared.clone(), options.keeps_clean);
        let drain = move || shared.drain(log, keeps_clean);
        self.threads.push(thread("outputs").spawn(drain).map_err(fail)?);
        Ok(())
    }

    /// Its staging directory.
    #[must_use]
    pub const fn staging(&self) -> &Arc<StagingDir> {
        &self.staging
    }

    /// Its plan.
    #[must_use]
    pub fn plan(&self) -> &Arc<SharedPlan> {
        &self.shared.plan
    }

    /// Sets the bound of bytes that are not published.
    pub fn set_max_pending(&self, max_pending: Option<u64>) {
        self.shared.room.set_max_pending(max_pending);
    }

    /// Sets how long a process waits for other nodes to publish what it does not find.
    pub fn set_peer_wait(&self, wait: Duration) {
        if let Some(finder) = &self.finder {
            finder.set_wait(wait);
        }
    }

    /// The PFS below the root.
    #[must_use]
    pub fn target(&self) -> &Arc<dyn OutputTarget> {
        &self.shared.context.target
    }

    /// What is pending.
    #[must_use]
    pub fn status(&self) -> OutputStatus {
        let (info, shared) = (self.staging.info(), &self.shared);
        let mut status = OutputStatus {
            path: info.path(),
            staging: self.staging.path().to_owned(),
            tier: info.tier.clone(),
            is_volatile: info.is_volatile,
            pending_bytes: shared.room.pending_bytes(),
            clean_bytes: shared.room.clean_bytes(),
            rate: shared.rate(),
            is_refused: shared.view.is_refused.load(Ordering::Acquire),
            ..OutputStatus::default()
        };
        shared.view.backlog().fill(&mut status);
        // A long run of publications, or the first one, has not told yet.
        let mut plan = shared.plan.lock();
        let _ = plan.read(&self.staging);
        let (planner, state) = (&plan.planner, self.staging.state());
        (status.pending, status.open) = (planner.pending_len() as u64, planner.open_files().count() as u64);
        // A process may have been killed meanwhile: its part file is removed before all is done. So
        // are those of files that the job has removed.
        status.open += state.making.iter().filter(|slot| slot.is_taken()).count() as u64;
        // The marker in the output root goes last.
        let is_over = state.published.load(Ordering::Acquire) >= planner.published()
            && !shared.view.has_marker.load(Ordering::Acquire);
        if (status.pending, status.open) == (0, 0) && !is_over {
            status.open = 1;
        }
        drop(plan);
        // (What was published while the plan was asked counts.)
        shared.view.backlog().count(&mut status);
        status.waits_for = shared.order.names();
        status.held = status.held.or_else(|| shared.order.held());
        status
    }

    /// Publishes what a staged file that is open has at the moment; its bytes.
    ///
    /// # Errors
    /// [`OutputsError`].
    pub fn publish_snapshot(&self, root: &Path, file: &Path) -> Result<u64, OutputsError> {
        let (snapshot, answer) = snapshot::copy(&self.staging, self.target(), root, file)?;
        let bytes = snapshot.bytes;
        self.shared.view.snapshots.lock().unwrap_or_else(PoisonError::into_inner).push(snapshot);
        self.staging.map().notify_agent();
        match answer.recv_timeout(SNAPSHOT_TIMEOUT) {
            Ok(end) => end.map(|()| bytes).map_err(|failure| OutputsError::io("publish", file)(failure.errno)),
            Err(_) => Err(OutputsError::NotYet { path: file.to_owned() }),
        }
    }

    /// Answers a node about the order; `None` when that is not possible now.
    #[must_use]
    pub fn answer(&self, from: NodeId, ask: Ask) -> Option<Answer> {
        self.shared.plan.answer(from, ask)
    }

    /// Answers a node that does not find a name; `None` when that is not possible now.
    #[must_use]
    pub fn find(&self, find: &Find) -> Option<Found> {
        self.shared.plan.find(find)
    }

    /// Makes the drain look at all open files, and waits until it found nothing more to do at once.
    /// Whether it did so in time.
    pub fn look(&self, timeout: Duration) -> bool {
        let view = &self.shared.view;
        let (wanted, began) = (view.look_wanted.fetch_add(1, Ordering::AcqRel) + 1, Instant::now());
        while view.look_done.load(Ordering::Acquire) < wanted {
            if began.elapsed() > timeout {
                return false;
            }
            self.staging.map().notify_agent();
            std::thread::sleep(LOOK_POLL);
        }
        true
    }

    /// Ends its threads. What is pending stays.
    pub fn stop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.context.leases.stop();
        if let Some(finder) = &self.finder {
            finder.stop();
        }
        self.staging.map().notify_agent();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The number of an output root: the same on all nodes where it has the same path.
#[must_use]
pub fn root_number(root: &Path) -> u64 {
    xxh3_64(root.as_os_str().as_bytes())
}

impl Drop for RootDrain {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn keep_room(&self) {
        let staging = &self.context.staging;
        let (mut seen, mut since) = (0, Instant::now());
        while !self.is_stopping.load(Ordering::Acquire) {
            let now = staging.state().appended.load(Ordering::Acquire);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            let open = self.plan.lock().planner.open_files().map(|file| file.staged.id).collect();
            let is_busy = self.room.tick(&open);
            ahead::keep_for(staging);
            staging.lengthen_journal();
            std::thread::sleep(ROOM_TICK);
            if !is_busy && since.elapsed() > IDLE_ROOM_TICK {
                staging.sleep(seen, IDLE_ROOM_TICK);
            }
        }
    }

    fn drain(&self, (log, newer): (PublishedLog, NewerCheck), keeps_clean: bool) {
        let context = self.context.clone();
        let publisher = Publisher::new(context.staging.clone(), context.target.clone(), log, newer, keeps_clean);
        let mut drain = Drain::new(context, self.plan.clone(), publisher, self.room.clone(), self.view.clone());
        let state = self.context.staging.state();
        while !self.is_stopping.load(Ordering::Acquire) {
            let seen = state.appended.load(Ordering::Acquire);
            let wanted = self.view.look_wanted.load(Ordering::Acquire);
            if wanted != self.view.look_done.load(Ordering::Acquire) {
                drain.hurry();
            }
            if !drain.turn() && !self.is_stopping.load(Ordering::Acquire) {
                self.view.look_done.store(wanted, Ordering::Release);
                drain.sleep(seen);
            }
        }
        drain.stop();
    }

    fn rate(&self) -> u64 {
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, bytes) = (rate.since.elapsed(), self.context.copied_bytes.load(Ordering::Relaxed));
        if now >= RATE_TIME {
            rate.rate = ((bytes - rate.bytes) as f64 / now.as_secs_f64()) as u64;
            (rate.since, rate.bytes) = (Instant::now(), bytes);
        }
        rate.rate
    }
}
