//! Which engines an agent has, by its configuration and by what kernel and container allow.

use super::{Limits, ThreadsEngine, UringEngine, UringOptions};
use monarch_config::{Config, Direct, Engine};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Threads that run a ring, at most: each hashes and writes what its ring has read.
const MAX_RINGS: usize = 4;

/// The engines of an agent. There always are threads: they copy what a reader waits for.
#[derive(Debug)]
pub struct Engines {
    /// One file at a time on each thread.
    pub threads: ThreadsEngine,
    /// Many files at a time on each thread, if the kernel allows io_uring and the configuration
    /// asks for it.
    pub uring: Option<UringEngine>,
    /// Threads that run `uring`.
    pub rings: usize,
    /// Whether the faster engine is to be found by trials, for each mount.
    pub auto: bool,
    /// The reason for this choice, in words.
    pub why: String,
}

impl Engines {
    /// Chooses what the configuration asks for, as far as the kernel allows it, and logs that.
    #[must_use]
    pub fn choose(config: &Config, limits: &Arc<Limits>, stop: &Arc<AtomicBool>) -> Self {
        let (source, io) = (&config.source, config.io);
        let threads = ThreadsEngine::new(source.io_size, limits.clone(), stop.clone());
        if io.engine == Engine::Threads {
            let why = "io.engine is threads".to_owned();
            return Self { threads, uring: None, rings: 0, auto: false, why };
        }
        let slots = slots_ahead(source.max_inflight);
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let rings = MAX_RINGS.min(cores).min(slots);
        let options =
            UringOptions { io_size: source.io_size, depth: slots.div_ceil(rings), direct: io.direct == Direct::Yes };
        match UringEngine::new(options, limits.clone(), stop.clone()) {
            Ok(uring) => {
                let auto = io.engine == Engine::Auto;
                let why =
                    if auto { "both take turns on each mount until they are measured" } else { "io.engine is uring" }
                        .to_owned();
                tracing::info!(engine = if auto { "auto" } else { "uring" }, rings, "copy engine: {why}");
                Self { threads, uring: Some(uring), rings, auto, why }
            }
            Err(e) => {
                if io.engine == Engine::Uring {
                    tracing::warn!("copying with threads: {e}");
                } else {
                    tracing::info!("copying with threads: {e}");
                }
                Self { threads, uring: None, rings: 0, auto: false, why: e.to_string() }
            }
        }
    }
}

/// Slots for prefetch out of `all` slots for files under way: a few stay free for demands.
#[must_use]
pub fn slots_ahead(all: usize) -> usize {
    let kept = (all / 8).clamp(1, 4).min(all.saturating_sub(1));
    all - kept
}
