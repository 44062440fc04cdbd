//! What the libraries of Monarch in the processes of a job share: the preload library
//! (`monarch-shim`) and the audit library (`monarch-audit`).
//!
//! Each of the two has a copy of this crate's state: they lie in different namespaces of the
//! dynamic loader. The crate allocates nothing, keeps no descriptors, starts no threads and
//! reaches no panic.
//!
//! | module | what it holds |
//! |---|---|
//! | [`control`] | the control block that the environment names |
//! | [`ctx`] | the boot gate, shared memory, which roots can be trusted in this process |
//! | [`absent`] | names that are not there |
//! | [`absolute`] | absolute paths |
//! | [`agent_socket`] | talking to the agent |
//! | [`process`] | what this process has found out about itself |
//! | [`cwd`] | whether the working directory matters to any root |
//! | [`sys`] | bare system calls |
//! | [`errno`] | the error number of a thread |
//! | [`once`] | values that are written once |
//! | [`user`] | reading and writing through pointers of the application |
//! | [`copy_open`] | where a copy lies, opening it, waiting for it |
//! | [`guard`] | checks before use: whether a file has changed, whether its copy is sound |
//! | [`mounts`] | what is mounted where |
#![cfg_attr(not(test), no_std)]
#![allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "C types")]

pub mod absent;
pub mod absolute;
pub mod agent_socket;
pub mod control;
pub mod copy_open;
pub mod ctx;
pub mod cwd;
pub mod errno;
pub mod guard;
pub mod mounts;
pub mod once;
pub mod process;
pub mod sys;
pub mod user;
