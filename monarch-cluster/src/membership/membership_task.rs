//! The task of a node: it ticks, hears, tries nodes that failed, and publishes a new view when
//! something changed.

use super::datagram_auth::{Dropped, Opener, Sealer};
use super::gossip::Gossip;
use super::member::GONE_AFTER_MS;
use super::message::{Outgoing, Payload};
use super::peer_backoff::Evidence;
use super::record::MAX_NAME_BYTES;
use super::transport::{Datagrams, MAX_DATAGRAM_BYTES};
use super::types::{Drops, MembershipError, Options, Peer};
use crate::directory::members::{ME, node_key};
use crate::directory::{Members, NodeState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How long a connection that tries a failed node may take.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Least milliseconds between two messages about dropped datagrams.
const LOG_PERIOD_MS: u64 = 60_000;

pub(super) struct Shared {
    core: Mutex<Core>,
    pub(super) view: RwLock<Arc<Members>>,
    pub(super) changed: watch::Sender<u64>,
    failures: AtomicBool,
    began: Instant,
    interval: Duration,
}

pub(super) struct Core {
    pub(super) gossip: Gossip,
    pub(super) evidence: Evidence,
    sealer: Sealer,
    opener: Opener,
    pub(super) drops: Drops,
    logged: (u64, Drops),
    /// Revision of the table when the view was compared with it.
    published: u64,
}

/// Milliseconds since 1970.
fn clock() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_millis() as u64)
}

impl Shared {
    pub(super) fn new(options: &Options) -> Result<Self, MembershipError> {
        let named = std::iter::once(&options.me).chain(options.members.iter().map(|(name, _)| name));
        if let Some(bad) = named.clone().find(|name| name.is_empty() || name.len() > MAX_NAME_BYTES) {
            return Err(MembershipError::Name(bad.clone()));
        }
        let incarnation = clock();
        let me =
            Peer { name: options.me.clone(), incarnation, gossip: Some(options.listen), files: Some(options.files) };
        let mut gossip = Gossip::new(&me, 0, options.join_timeout.as_millis() as u64);
        let mut view = Members::new(&options.me);
        view.locate(ME, incarnation, Some(options.files));
        for (name, at) in options.members.iter().filter(|(name, _)| *name != options.me) {
            view.add(name, NodeState::Expected)?;
            gossip.table.expect(name, *at);
        }
        if options.is_closed {
            gossip.table.close();
        }
        let core = Core {
            gossip,
            evidence: Evidence::default(),
            sealer: Sealer::new(&options.key, options.encrypt, node_key(&options.me), incarnation),
            opener: Opener::new(&options.key, options.encrypt),
            drops: Drops::default(),
            logged: (0, Drops::default()),
            published: 0,
        };
        Ok(Self {
            core: Mutex::new(core),
            view: RwLock::new(Arc::new(view)),
            changed: watch::Sender::new(0),
            failures: AtomicBool::new(false),
            began: Instant::now(),
            interval: options.interval,
        })
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn any_failures(&self) -> bool {
        self.failures.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Changes what is known, and the view with it, before another thread can.
    pub(super) fn change<T>(&self, how: impl FnOnce(&mut Core, u64) -> T) -> T {
        let now = self.now();
        let mut core = self.core();
        let result = how(&mut core, now);
        self.publish(&mut core, now);
        result
    }

    fn publish(&self, core: &mut Core, now: u64) {
        self.failures.store(core.evidence.any(), Ordering::Relaxed);
        core.published = core.gossip.table.revision();
        let before = self.view.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(view) = core.look(&before, now) {
            *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
            self.changed.send_modify(|n| *n += 1);
        }
    }

    pub(super) fn joined(&self, peer: &Peer) {
        let number = self.view.read().unwrap_or_else(PoisonError::into_inner).number(&peer.name);
        self.change(|core, now| {
            core.gossip.present(peer, now);
            if let Some(node) = number {
                core.evidence.success(node);
            }
        });
    }

    pub(super) fn peers(&self) -> Vec<Peer> {
        self.core().gossip.peers()
    }

    /// Takes in a datagram. One that is not authentic costs its authentication and a counter.
    fn hear(&self, datagram: &mut [u8]) -> Vec<(SocketAddr, Vec<u8>)> {
        let now = self.now();
        let mut core = self.core();
        let payload = match core.open(datagram) {
            Ok(payload) => payload,
            Err(why) => {
                core.drops.count(why);
                return Vec::new();
            }
        };
        let out = core.gossip.hear(&payload, now);
        // Most datagrams change nothing; what time changes shows with the next tick.
        if core.gossip.table.revision() != core.published {
            self.publish(&mut core, now);
        }
        core.seal(out)
    }

    fn tick(&self) -> Vec<(SocketAddr, Vec<u8>)> {
        self.change(|core, now| {
            core.log_drops(now);
            let out = core.gossip.tick(now);
            core.seal(out)
        })
    }

    fn trials(&self) -> Vec<(u16, SocketAddr)> {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner).clone();
        let due = self.change(|core, now| core.evidence.due(now));
        due.into_iter().filter_map(|node| Some((node, view.get(node)?.address?))).collect()
    }
}

impl Core {
    fn seal(&mut self, out: Vec<Outgoing>) -> Vec<(SocketAddr, Vec<u8>)> {
        out.into_iter().filter_map(|(to, payload)| Some((to, self.sealer.seal(clock(), &payload.encode())?))).collect()
    }

    fn open(&mut self, datagram: &mut [u8]) -> Result<Payload, Dropped> {
        Payload::decode(self.opener.open(clock(), datagram)?).ok_or(Dropped::Malformed)
    }

    fn log_drops(&mut self, now: u64) {
        let (at, before) = self.logged;
        let d = self.drops;
        // The first node of another version or setting is logged at once.
        let is_news = (d.version > 0 && before.version == 0) || (d.encryption > 0 && before.encryption == 0);
        if d == before || (now < at + LOG_PERIOD_MS && !is_news) {
            return;
        }
        self.logged = (now, d);
        d.log_since(&before);
    }

    /// The view as it is now, if it is not that one.
    fn look(&self, before: &Members, now: u64) -> Option<Members> {
        let mut view: Option<Members> = None;
        for (member, standing) in self.gossip.standings(now) {
            let (life, files) = (member.incarnation.life, member.contact.files);
            let known = before.number(&member.contact.name);
            if known.is_none() && standing != NodeState::Up {
                continue;
            }
            let since = known.and_then(|n| self.evidence.blocked_since(n, life));
            let standing = match since.filter(|_| standing == NodeState::Up) {
                None => standing,
                Some(since) if now.saturating_sub(since) < GONE_AFTER_MS => NodeState::Suspect,
                // It is heard, and none of its files can be had.
                Some(_) => NodeState::Gone,
            };
            let is = |m: &crate::directory::Member| (m.standing, m.incarnation, m.address) == (standing, life, files);
            if known.and_then(|n| before.get(n)).is_some_and(is) {
                continue;
            }
            let view = view.get_or_insert_with(|| before.clone());
            // One node too many is not taken in; gossip is bounded by the same number.
            if let Ok(node) = view.add(&member.contact.name, standing) {
                view.locate(node, life, files);
                view.set(node, standing);
            }
        }
        view
    }
}

/// Runs until `ended` is dropped, then says goodbye.
pub(super) async fn run(shared: Arc<Shared>, socket: impl Datagrams, mut ended: oneshot::Receiver<()>) {
    let mut buffer = [0; MAX_DATAGRAM_BYTES];
    let mut ticks = interval(shared.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let out = tokio::select! {
            _ = &mut ended => break,
            _ = ticks.tick() => {
                shared.trials().into_iter().for_each(|(node, at)| drop(tokio::spawn(try_node(shared.clone(), node, at))));
                shared.tick()
            }
            got = socket.receive(&mut buffer) => match got {
                Ok(len) => shared.hear(&mut buffer[..len]),
                Err(e) => {
                    tracing::debug!(error = %e, "gossip could not be received");
                    // An error that stays must not turn into a busy loop.
                    tokio::time::sleep(shared.interval).await;
                    Vec::new()
                }
            },
        };
        out.iter().for_each(|(to, datagram)| socket.send(*to, datagram));
    }
    shared.change(|core, now| core.gossip.leave(now));
    shared.tick().iter().for_each(|(to, datagram)| socket.send(*to, datagram));
}

async fn try_node(shared: Arc<Shared>, node: u16, at: SocketAddr) {
    if matches!(timeout(TRIAL_TIMEOUT, tokio::net::TcpStream::connect(at)).await, Ok(Ok(_))) {
        shared.change(|core, _| core.evidence.reachable(node));
    }
}
