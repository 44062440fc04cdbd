//! Which engines an agent has, by its configuration and by what kernel and container allow.

use super::{Limits, ThreadsEngine, UringEngine, UringOptions};
use monarch_config::{Config, Direct, Engine};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Most threads that run a ring: each hashes and writes what its ring has read.
const RINGS: usize = 4;

/// The engines of an agent. Threads are always there: demands that somebody waits for are theirs.
#[derive(Debug)]
pub struct Engines {
    /// One file at a time on each thread.
    pub threads: ThreadsEngine,
    /// Many files at a time, if there is such a thing here and it is wanted.
    pub uring: Option<UringEngine>,
    /// Threads that run `uring`.
    pub rings: usize,
    /// Whether the better one is to be found out for each mount.
    pub auto: bool,
    /// Why these, in words.
    pub why: String,
}

impl Engines {
    /// What the configuration asks for, as far as it is to be had; said in the log in one line.
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
        let rings = RINGS.min(cores).min(slots);
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

/// How many of `all` files under way may be fetched ahead: some places are kept free for demands.
#[must_use]
pub fn slots_ahead(all: usize) -> usize {
    let kept = (all / 8).clamp(1, 4).min(all.saturating_sub(1));
    all - kept
}
