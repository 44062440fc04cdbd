//! [`EngineLanes`]: the copy engines, and which of them copies what.

use crate::config::Direct;
use crate::engine::{CopyEngine, Engines, Source};
use crate::tiering::core::context::Context;
use crate::tiering::core::engine_trial::{Change, EngineTrials, Kind};
use crate::tiering::core::identity_scope::IdentityScope;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::segments::LiveSegment;
use crate::tiering::core::shared::Shared;
use crate::tiering::queue::waker::Waker;
use monarch_abi::segment::Segment;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The copy engines, and the trials that choose between them.
pub(crate) struct EngineLanes {
    cx: Arc<Context>,
    waker: Arc<Waker>,
    pub(crate) engines: Engines,
    pub(crate) engine_trials: EngineTrials,
}

impl EngineLanes {
    pub(crate) fn new(shared: &Shared, waker: &Arc<Waker>, engines: Engines) -> Self {
        Self { cx: shared.cx.clone(), waker: waker.clone(), engines, engine_trials: EngineTrials::default() }
    }

    /// The lane that copies files or chunks of a segment now.
    pub(crate) fn lane_of(&self, live: &LiveSegment, kind: Kind) -> Lane {
        match self.has_choice(live) {
            None => Lane::Threads,
            Some(false) => Lane::Rings,
            Some(true) => live.mount.trial(kind).lane(),
        }
    }

    /// Whether both engines may copy from the source of a segment (`Some(true)`), or only rings
    /// (`Some(false)`), or only threads (`None`).
    fn has_choice(&self, live: &LiveSegment) -> Option<bool> {
        (self.engines.uring.is_some() && live.source.root().is_some()).then_some(self.engines.auto)
    }

    /// Notes that a file or chunk of `bytes` bytes was given out to a lane, for the trial of the
    /// engines.
    pub(crate) fn note_assigned(&self, live: &LiveSegment, kind: Kind, lane: Lane, bytes: u64) {
        if self.has_choice(live) != Some(true) {
            return;
        }
        let processor = || {
            let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
            Duration::new(t.tv_sec.unsigned_abs(), t.tv_nsec as u32)
        };
        match live.mount.trial(kind).note(lane, bytes, Instant::now(), processor) {
            None => {}
            Some(Change::Turn(lane)) => self.waker.wake(lane),
            Some(Change::Measured(lane, ratios)) => {
                let what = match kind {
                    Kind::Files => "files",
                    Kind::Chunks => "chunks",
                    Kind::Streamed => "streamed chunks",
                };
                let root =
                    self.cx.ctl.roots().get(live.root).map(|r| String::from_utf8_lossy(self.cx.ctl.str(&r.path)));
                let root = root.unwrap_or_default();
                tracing::info!(%root, what, engine = lane.name(), "copy engine chosen: {ratios}");
                self.waker.wake(lane);
            }
        }
    }

    /// The engine that prefetches from the source of a segment, and why it is that one.
    pub(crate) fn engine_of(&self, live: &LiveSegment) -> String {
        let of = |kind| {
            let trial = live.mount.trial(kind);
            format!("{} ({})", trial.lane().name(), trial.why())
        };
        match self.has_choice(live) {
            None => format!("{}: {}", Lane::Threads.name(), self.engines.why),
            Some(false) => format!("{}: {}", Lane::Rings.name(), self.engines.why),
            Some(true) => {
                format!("files {}, chunks {}, streamed {}", of(Kind::Files), of(Kind::Chunks), of(Kind::Streamed))
            }
        }
    }

    /// Name of the engine for prefetch, and why it is that one.
    #[must_use]
    pub(crate) fn engine(&self) -> (&'static str, &str) {
        let name = match &self.engines.uring {
            Some(_) if self.engines.auto => "auto",
            Some(uring) => uring.name(),
            None => self.engines.threads.name(),
        };
        (name, &self.engines.why)
    }

    /// Makes a segment of a root that `TieringEngine::add_segment` can serve.
    #[must_use]
    pub(crate) fn live(
        &self,
        root: usize,
        segment: Segment<'static>,
        source: Arc<dyn Source>,
        fresh: bool,
    ) -> LiveSegment {
        let device = self.cx.ctl.roots().get(root).map_or(0, |r| r.dev.load(Ordering::Relaxed));
        let mount = self.engine_trials.of(device, &*source, self.cx.options.direct == Direct::Yes);
        LiveSegment { segment, source, fresh, portable: IdentityScope::default(), prefetched: true, root, mount }
    }
}
