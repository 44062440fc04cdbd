//! The task of a node: it ticks, hears, tries nodes that failed, and publishes a new view when
//! something changed.

use super::datagram_auth::{Dropped, Opener, Sealer};
use super::gossip::{GONE_AFTER_MS, Gossip, Outgoing};
use super::payload::{Intro, MAX_NAME_BYTES, Payload};
use super::peer_backoff::Evidence;
use super::transport::Datagrams;
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
        let me = Intro {
            name: options.me.clone(),
            incarnation,
            beat: 0,
            gossip: Some(options.listen),
            files: Some(options.files),
            version: env!("CARGO_PKG_VERSION").into(),
        };
        let mut gossip = Gossip::new(me, 0, options.join_timeout.as_millis() as u64);
        let mut view = Members::new(&options.me);
        view.locate(ME, incarnation, Some(options.files));
        for (name, at) in options.members.iter().filter(|(name, _)| *name != options.me) {
            view.add(name, NodeState::Expected)?;
            gossip.expect(name, *at);
        }
        if options.is_closed {
            gossip.close();
        }
        let core = Core {
            gossip,
            evidence: Evidence::default(),
            sealer: Sealer::new(&options.key, node_key(&options.me), incarnation),
            opener: Opener::new(&options.key),
            drops: Drops::default(),
            logged: (0, Drops::default()),
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

    /// Changes what is known, and the view with it, before another thread can.
    pub(super) fn change<T>(&self, how: impl FnOnce(&mut Core, u64) -> T) -> T {
        let now = self.began.elapsed().as_millis() as u64;
        let mut core = self.core();
        let result = how(&mut core, now);
        self.failures.store(core.evidence.any(), Ordering::Relaxed);
        let before = self.view.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(view) = core.look(&before, now) {
            *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
            self.changed.send_modify(|n| *n += 1);
        }
        result
    }

    pub(super) fn joined(&self, peer: &Peer) {
        let number = self.view.read().unwrap_or_else(PoisonError::into_inner).number(&peer.name);
        self.change(|core, now| {
            core.gossip.present(now, peer);
            if let Some(node) = number {
                core.evidence.success(node);
            }
        });
    }

    pub(super) fn peers(&self) -> Vec<Peer> {
        let now = self.began.elapsed().as_millis() as u64;
        let core = self.core();
        let up = core.gossip.standings(now).filter(|(_, s)| *s == NodeState::Up).map(|(intro, _)| intro);
        std::iter::once(&core.gossip.me).chain(up).map(Peer::of).collect()
    }

    fn hear(&self, datagram: &[u8]) -> Vec<(SocketAddr, Vec<u8>)> {
        self.change(|core, now| match core.open(datagram) {
            Ok(payload) => core.gossip.hear(now, &payload).map(|out| core.seal(out)).into_iter().collect(),
            Err(why) => {
                core.count(why);
                Vec::new()
            }
        })
    }

    fn tick(&self) -> Vec<(SocketAddr, Vec<u8>)> {
        self.change(|core, now| {
            core.log_drops(now);
            let out = core.gossip.tick(now);
            out.into_iter().map(|out| core.seal(out)).collect()
        })
    }

    fn trials(&self) -> Vec<(u16, SocketAddr)> {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner).clone();
        let due = self.change(|core, now| core.evidence.due(now));
        due.into_iter().filter_map(|node| Some((node, view.get(node)?.address?))).collect()
    }
}

impl Core {
    fn seal(&mut self, (to, payload): Outgoing) -> (SocketAddr, Vec<u8>) {
        (to, self.sealer.seal(clock(), &payload.encode()))
    }

    fn open(&mut self, datagram: &[u8]) -> Result<Payload, Dropped> {
        Payload::decode(self.opener.open(clock(), datagram)?).ok_or(Dropped::Malformed)
    }

    fn count(&mut self, why: Dropped) {
        match why {
            Dropped::Foreign => self.drops.foreign += 1,
            Dropped::Forged => self.drops.forged += 1,
            Dropped::Replayed => self.drops.replayed += 1,
            Dropped::Crowded | Dropped::Malformed => self.drops.other += 1,
            Dropped::Skewed(by) => {
                self.drops.skewed += 1;
                self.drops.last_skew = by;
            }
        }
    }

    fn log_drops(&mut self, now: u64) {
        let (at, before) = self.logged;
        if now < at + LOG_PERIOD_MS || self.drops == before {
            return;
        }
        let d = self.drops;
        tracing::warn!(
            foreign = d.foreign,
            forged = d.forged,
            replayed = d.replayed,
            other = d.other,
            "gossip was dropped"
        );
        if d.skewed != before.skewed {
            tracing::warn!(
                datagrams = d.skewed,
                seconds = d.last_skew / 1000,
                "nodes are not heard because their clocks differ from this one by more than 30 s: set the clocks (NTP)"
            );
        }
        self.logged = (now, d);
    }

    /// The view as it is now, if it is not that one.
    fn look(&self, before: &Members, now: u64) -> Option<Members> {
        let mut view: Option<Members> = None;
        for (intro, standing) in self.gossip.standings(now) {
            let known = before.number(&intro.name);
            if known.is_none() && standing != NodeState::Up {
                continue;
            }
            let since = known.and_then(|n| self.evidence.blocked_since(n, intro.incarnation));
            let standing = match since.filter(|_| standing == NodeState::Up) {
                None => standing,
                Some(since) if now.saturating_sub(since) < GONE_AFTER_MS => NodeState::Suspect,
                // It is heard, and none of its files can be had.
                Some(_) => NodeState::Gone,
            };
            let is = |m: &crate::directory::Member| {
                (m.standing, m.incarnation, m.address) == (standing, intro.incarnation, intro.files)
            };
            if known.and_then(|n| before.get(n)).is_some_and(is) {
                continue;
            }
            let view = view.get_or_insert_with(|| before.clone());
            // One node too many is not taken in; gossip is bounded by the same number.
            if let Ok(node) = view.add(&intro.name, standing) {
                view.locate(node, intro.incarnation, intro.files);
                view.set(node, standing);
            }
        }
        view
    }
}

/// Runs until `ended` is dropped, then says goodbye.
pub(super) async fn run(shared: Arc<Shared>, socket: impl Datagrams, mut ended: oneshot::Receiver<()>) {
    let mut ticks = interval(shared.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let out = tokio::select! {
            _ = &mut ended => break,
            _ = ticks.tick() => {
                shared.trials().into_iter().for_each(|(node, at)| drop(tokio::spawn(try_node(shared.clone(), node, at))));
                shared.tick()
            }
            got = socket.receive() => match got {
                Ok(datagram) => shared.hear(&datagram),
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
    shared.core().gossip.leave();
    shared.tick().iter().for_each(|(to, datagram)| socket.send(*to, datagram));
}

async fn try_node(shared: Arc<Shared>, node: u16, at: SocketAddr) {
    if matches!(timeout(TRIAL_TIMEOUT, tokio::net::TcpStream::connect(at)).await, Ok(Ok(_))) {
        shared.change(|core, _| core.evidence.reachable(node));
    }
}
