//! The middleware library of Monarch, which keeps the files that a job reads from a parallel file
//! system (PFS) in tiers on the node.
//!
//! A program that links this crate needs neither the command line nor the preload library. A
//! [`session::Session`] attaches to the agent of the node, or hosts one in threads of the process,
//! and opens files by path: their copy if there is one or the agent makes one in time, otherwise
//! the file itself.
//!
//! ```
//! use monarch_core::config::{self, Overrides, SystemProbe};
//! use monarch_core::session::Session;
//! use std::time::Duration;
//!
//! # let scratch = tempfile::tempdir()?;
//! # let (root, tier) = (scratch.path().join("data"), scratch.path().join("tier"));
//! # for dir in [&root, &tier] { std::fs::create_dir(dir)? }
//! # std::fs::write(root.join("sample"), "pixels")?;
//! let given = Overrides {
//!     roots: vec![root.clone()],                         // such as /scratch/imagenet
//!     tiers: vec![format!("{}:64MiB", tier.display())],  // such as /dev/shm:8GiB
//!     set: vec![("dataset.min_file_age".into(), "0s".into())], // this file was made just now
//!     ..Overrides::default()
//! };
//! let config = config::load(None, std::iter::empty(), &given, &SystemProbe)?.config;
//!
//! let session = Session::start(&config)?;
//! session.wait_for_index(Duration::from_secs(60))?;
//! let opened = session.open(root.join("sample"))?;
//! assert_eq!(std::io::read_to_string(&opened.file)?, "pixels");
//! println!("read from {:?}; an open now: {}", opened.place, session.explain(root.join("sample")).verdict);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`tiering`] | takes demands, prefetches, places, copies, publishes |
//! | [`agent`] | the process per node that ties these together |
//! | [`metrics`] | what the agent tells monitoring systems |
//! | [`session`] | a job that links this crate: opens, prefetches, asks |
//! | [`reader`] | reading through an agent's shared memory; why a path is served or not |
//! | [`kept`] | copies that jobs have left, for commands that find no agent |
//! | [`left_outputs`] | what jobs have written and not published, for commands that find no agent |
//! | [`snapshot`] | plain accounts of an agent at one moment |
//! | [`index`], [`tier`], [`engine`], [`trace`], [`shm`] | storage: `monarch-storage` |
//! | [`held_dir`], [`private_dir`], [`shown`], [`sys`] | directories, names in text for people, system calls: `monarch-storage` |
//! | [`cluster`] | nodes that share copies and the index: `monarch-cluster` |
//! | [`outputs`] | what jobs write: `monarch-outputs` |
//! | [`config`], [`trusted`] | one YAML file, environment, flags; paths that no other user can lead elsewhere: `monarch-config` |
// Shared-memory fields are 32 and 64 bits wide by layout; narrowing happens where the layout bounds
// the value.
#![allow(clippy::cast_possible_truncation)]

pub mod agent;
pub mod kept;
pub mod left_outputs;
pub mod metrics;
pub mod reader;
pub mod session;
pub mod snapshot;
mod sync;
pub mod tiering;

pub use monarch_cluster as cluster;
pub use monarch_config as config;
pub use monarch_config::trusted;
pub use monarch_outputs as outputs;
pub use monarch_storage::{
    engine, held_dir, index, private_dir, sharing, shm, shown, sys, tier, token_bucket, trace, working_set,
};
