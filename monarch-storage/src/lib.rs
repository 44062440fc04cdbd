//! What lies on disks and in shared memory: tiers of copies, the engines that fill them, the
//! namespace index, traces.
//!
//! | module | what it holds |
//! |---|---|
//! | [`index`] | scanning a root, the immutable index, saved index files |
//! | [`tier`] | directories for copies with a hard quota |
//! | [`engine`] | moving bytes from the PFS into a tier |
//! | [`trace`] | what a job opened, when and from where: written, read, counted |
//! | [`working_set`] | the files that a job opened first, for the next one |
//! | [`shm`] | the shared-memory files that the shim maps |
//! | [`held_dir`], [`private_dir`] | directories held by a descriptor; directories of this user alone |
//! | [`sharing`] | what the tiering engine and the cluster ask of each other |
//! | [`shown`] | names from the PFS in text for people |
//! | [`sys`] | system interfaces that no safe crate offers |
// Shared-memory fields are 32 and 64 bits wide by layout; narrowing happens where the layout bounds
// the value.
#![allow(clippy::cast_possible_truncation)]

mod beneath;
pub mod engine;
pub mod held_dir;
pub mod index;
mod parts_of;
pub mod private_dir;
pub mod sharing;
pub mod shm;
pub mod shown;
pub mod sys;
pub mod tier;
pub mod token_bucket;
pub mod trace;
pub mod working_set;
