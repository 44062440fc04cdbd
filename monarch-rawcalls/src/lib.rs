//! Changes that a job makes by raw system calls, which no preload library sees.
//!
//! A seccomp filter in the job's processes notifies `monarch run` of the rare calls that change
//! names or attributes; opens, reads and writes pass. What concerns no root goes on in the kernel
//! as if there were no filter. The rest is done by a helper process that has the preload library,
//! through the functions of the C library: so there is one implementation of what a change means.
//!
//! | module | what it holds |
//! |---|---|
//! | [`calls`] | which calls, and where their arguments are |
//! | [`filter`] | the program for the kernel |
//! | [`scope`] | which paths concern Monarch |
//! | [`target`] | the calling process: its memory, directories, rights |
//! | [`request`] | a change, as `run` hands it to the helper |
//! | [`perform`] | making a change, by the C library |
//! | [`packets`] | messages with descriptors |
//! | [`shared`] | what survives `run` |
//! | [`front`] | receives notifications, and has them answered |
//! | [`trap`] | installs the filter in the command's process |
//! | [`link`](mod@link) | the helper as `run` sees it |
//! | [`helper`] | the helper process |
//! | [`sys`] | system calls: the only `unsafe` |
#![deny(unsafe_code)]

mod calls;
mod filter;
mod front;
pub mod helper;
pub mod link;
mod packets;
mod perform;
mod request;
pub mod scope;
mod shared;
#[allow(unsafe_code, reason = "bare system calls, each with its reason")]
mod sys;
mod target;
pub mod trap;
