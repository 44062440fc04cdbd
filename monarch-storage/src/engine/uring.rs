//! The `uring` engine: one thread holds many files, and the kernel makes their calls.
//!
//! The thread that runs the engine takes files while its ring has room, has each opened (`openat2`
//! beneath the root), read (large ones in several requests at a time), asked who it is now
//! (`statx`, from the server) and closed by the kernel, and does itself what never waits for the
//! PFS: hashing and writing to the tier, in order, through the [`Sink`](super::Sink). It sleeps in
//! the kernel until something has ended; when nothing is left it returns.
//!
//! | module | what it does |
//! |---|---|
//! | [`ring`] | the ring, and who owns what the kernel touches |
//! | [`buffer`] | buffers: aligned, used again, bounded |
//! | [`slot`] | one file: which calls it needs, what their answers mean |
//! | [`worker`] | many files: their turn, the limits, the stop |
//!
//! Left out, and why: direct descriptors (`statx` takes none, and the identity must be that of the
//! very file that was read, whose type is looked at before anything is read); writes through the
//! ring (the kernel hands buffered writes to a worker where the file system cannot promise not to
//! block, one worker a file: the thread that hashes the bytes writes them while they are in its
//! cache). What can be linked is: the stat to the read that brings the last bytes of a file.
//!
//! On file systems that keep what a non-blocking read promises, reads are tried in place. Elsewhere
//! (FUSE, Lustre, NFS) a read may block the submitting thread whatever it was asked, so that a
//! worker of the kernel makes every call; there may be as many workers as the ring is deep.

mod buffer;
mod ring;
mod setup;
mod slot;
mod worker;

use super::{CopyEngine, Limits, ThreadsEngine, Work};
use ring::Ring;
use setup::Setup;
pub use setup::UringOptions;
use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use worker::Worker;

/// Why there is no io_uring.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The kernel refuses a ring.
    #[error("io_uring is not available: {error} ({hint})")]
    Refused {
        /// What it said.
        error: io::Error,
        /// What that means here.
        hint: String,
    },
    /// The kernel's io_uring lacks calls that are needed.
    #[error("io_uring of this kernel is too old (5.11 is needed)")]
    Old,
}

/// See the module.
#[derive(Debug)]
pub struct UringEngine {
    setup: Setup,
    /// Whether it has been said that a ring failed.
    said: AtomicBool,
}

thread_local! {
    /// The ring of this thread; it belongs to the thread that made it.
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

impl UringEngine {
    /// An engine within `limits`, until `stop`, if this kernel, container and user may have one.
    ///
    /// # Errors
    /// Why not.
    pub fn new(options: UringOptions, limits: Arc<Limits>, stop: Arc<AtomicBool>) -> Result<Self, Unavailable> {
        let depth = options.depth.max(1);
        let ring = Ring::new(depth).map_err(refused)?;
        if !ring.check().map_err(refused)? {
            return Err(Unavailable::Old);
        }
        let plain = ThreadsEngine::new(options.io_size, limits.clone(), stop.clone());
        let options = UringOptions { depth, ..options };
        Ok(Self { setup: Setup { options, limits, stop, plain }, said: AtomicBool::new(false) })
    }

    /// A ring fails that the kernel granted at first: descriptors or memory are short now.
    fn say(&self, e: &io::Error) {
        if !self.said.swap(true, Ordering::Relaxed) {
            tracing::warn!(error = %e, "io_uring fails; copying goes on without");
        }
    }
}

impl CopyEngine for UringEngine {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn run(&self, work: &dyn Work) {
        let ran = RING.with_borrow_mut(|kept| {
            let ring = match kept.take().filter(|ring| ring.depth() == self.setup.options.depth) {
                Some(ring) => kept.insert(ring),
                None => kept.insert(Ring::new(self.setup.options.depth)?),
            };
            Worker::new(&self.setup, work, ring).run().inspect_err(|_| *kept = None)
        });
        if let Err(e) = ran {
            self.say(&e);
            self.setup.plain.run(work);
        }
    }
}

fn refused(error: io::Error) -> Unavailable {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let hint = match (error.raw_os_error(), disabled.trim()) {
        (Some(libc::EPERM), level @ ("1" | "2")) => format!("kernel.io_uring_disabled is {level}"),
        (Some(libc::EPERM | libc::EACCES), _) => "forbidden by a seccomp profile or security module".to_owned(),
        (Some(libc::ENOSYS), _) => "the kernel has none, or a seccomp profile hides it".to_owned(),
        (Some(libc::ENOMEM), _) => "memory is short, or RLIMIT_MEMLOCK (ulimit -l) is too low".to_owned(),
        (Some(libc::EMFILE | libc::ENFILE), _) => "too many open files".to_owned(),
        _ => "unexpected".to_owned(),
    };
    Unavailable::Refused { error, hint }
}
