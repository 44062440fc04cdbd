//! Every order in which readers, the agent and the job can meet over a large file that is being
//! fetched, by `loom`.
//!
//! The tested code is the product's own files, compiled here with loom's atomics and locks in place
//! of the usual ones: the bits and counters of chunks, demands, the shim's reader, the agent's
//! state of one file. They see the rest of the world as `crate::...`, and find small stand-ins
//! here: a control block of a few fields, files of a few bytes, a futex. The steps of the agent
//! around that state ([`agent`]) are written after `tiering/chunked_fetches.rs`, one by one.
//!
//! One byte is a chunk. The bytes of files are atomics without any order of their own, as the page
//! cache gives none.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests")]

extern crate self as monarch_abi;
extern crate self as monarch_guest;

#[path = "model/agent.rs"]
mod agent;
#[path = "model/tests.rs"]
mod tests;
#[path = "model/world.rs"]
mod world;

/// The product.
#[allow(dead_code, reason = "not all of it is needed here")]
#[path = "../monarch-abi/src/bitmap.rs"]
mod bitmap;
#[allow(dead_code, reason = "not all of it is needed here")]
#[path = "../monarch-core/src/tiering/copy/chunk_progress.rs"]
mod chunk_progress;
#[allow(dead_code, reason = "not all of it is needed here")]
#[path = "../monarch-core/src/tiering/copy/chunked_fetch.rs"]
mod chunked_fetch;
#[allow(dead_code, reason = "not all of it is needed here")]
#[path = "../monarch-abi/src/chunks.rs"]
mod chunks;
#[allow(dead_code, reason = "not all of it is needed here")]
#[path = "../monarch-abi/src/demand.rs"]
mod demand;
#[allow(dead_code, reason = "not all of it is needed here")]
#[path = "../monarch-shim/src/large.rs"]
mod large;
#[allow(dead_code, reason = "not all of it is needed here")]
#[path = "../monarch-shim/src/chunks.rs"]
mod reader;
#[allow(dead_code, reason = "not all of it is needed here")]
#[path = "../monarch-abi/src/stream.rs"]
mod stream;
#[allow(dead_code, reason = "not all of it is needed here")]
#[path = "../monarch-core/src/tiering/copy/window_slots.rs"]
mod window_slots;
#[allow(dead_code, reason = "not all of it is needed here")]
#[path = "../monarch-abi/src/word.rs"]
mod word;

/// Its surroundings.
use world::{
    changes, control, copy_open, ctx, engine, errno, identity, mem, own_maps, resolve, small, sync, sys, tier, user,
};

mod tiering {
    pub(crate) mod copy {
        pub(crate) use crate::{chunk_progress, window_slots};
    }
    pub(crate) mod core {
        pub(crate) mod claimed_file {
            pub(crate) use crate::world::outcome::ClaimedFile;
        }
    }
}

const COPY_PATH_MAX: usize = 64;

/// As in the agent's tiering engine.
fn lock<T>(m: &sync::Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
    m.lock().unwrap()
}
