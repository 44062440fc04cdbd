//! The preload library as a binary: its exports, its imports and its sections; and what the command
//! line needs of the C library; the gate for symbols of a newer one.
//!
//! `cargo build --release --workspace` first. The C library is the one that this test runs with.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "abi/binary.rs"]
mod binary;
#[path = "abi/families.rs"]
mod families;
#[path = "abi/newer.rs"]
mod newer;
#[path = "abi/tools.rs"]
mod tools;
