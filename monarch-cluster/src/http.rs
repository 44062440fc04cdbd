//! HTTP/1.1 between agents: how one node gets the bytes of files that another one holds.
//!
//! | module | what it does |
//! |---|---|
//! | [`server`] | answers: asynchronous, thousands of connections on few threads, files by `sendfile` |
//! | [`client`] | asks: blocking, for the threads that copy files, with every wait bounded |
//! | [`auth`] | both prove that they know the job's secret, once a connection |
//! | [`session`] | what they send after that is authentic |
//! | [`tls`] | where it is encrypted: keys, and whose are taken |
//! | [`head`], [`path`], [`range`] | what is taken from the wire, and what is refused |
//! | [`refusal`] | why a request is turned down |
//!
//! It is plain HTTP, so that people and tools that look at it understand it; what is not in HTTP is
//! a few headers (`Monarch-Hops`, how many nodes passed a request on; `Monarch-Mac` and
//! `Monarch-Tag` of [`session`]; and the scheme `Monarch` of `Authorization`) and one habit: while
//! an answer is being made, the server sends `102 Processing` every 100 ms. A client can tell by it
//! an owner that is busy fetching the file from one that is gone, and gives up the latter soon
//! however long the former may take.

pub mod auth;
pub mod client;
mod end_in_memory;
mod error;
pub mod head;
pub mod path;
pub mod range;
pub mod refusal;
pub mod server;
pub mod session;
mod tls;

pub use auth::Key;
pub use client::{Peer, PeerOptions, Response, Senders, Sent, read_all_over_tls};
pub use end_in_memory::EndInMemory;
pub use error::WireError;
pub use head::Method;
pub use range::ByteRange;
pub use refusal::Refusal;
pub use server::{Answer, Answering, Body, Handler, Metrics, Options, Request, STRANGERS, Server};
pub use tls::{ALPN, Tls};

use std::time::Duration;

/// How often a server that is still busy says so.
pub const BUSY_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
