//! The `uring` engine: one thread holds many files, and the kernel makes their calls.
//!
//! The kernel opens (`openat2`), reads, stats and closes files; large ones with several reads at a
//! time. The thread takes files while its ring has space, hashes the bytes and writes them to the
//! tier in order (or has the kernel read them into the tier's memory), and sleeps in the kernel
//! until a call has ended. The stat that asks the server
//! for a file's identity is linked to the read of its last bytes. Where a non-blocking read does
//! not block, reads are tried in place; elsewhere (FUSE, Lustre, NFS) a worker of the kernel makes
//! every call.
//!
//! | module | what it does |
//! |---|---|
//! | [`ring`] | the ring, and the memory that the kernel may touch |
//! | [`buffer`] | buffers: aligned, reused, bounded |
//! | [`slot`] | one file: the calls that it needs, what their answers mean |
//! | [`worker`] | many files: their order, the limits, the stop |
// Not used: direct descriptors (`statx` takes none, and the identity must be that of the file that
// was read, whose type is looked at before anything is read), and writes through the ring (the
// kernel hands a buffered write that may block to a worker, one worker a file; the thread that
// hashes the bytes writes them while they are in its cache).

mod buffer;
mod ring;
mod setup;
mod slot;
mod worker;

use super::{CopyEngine, Limits, ThreadsEngine, Work};
use buffer::Buffers;
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

/// The `uring` engine.
#[derive(Debug)]
pub struct UringEngine {
    setup: Setup,
    /// Whether the log has the failure of a ring.
    said: AtomicBool,
}

thread_local! {
    /// The ring of this thread; it belongs to the thread that made it.
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
    /// Its buffers: bursts of work come closely after each other.
    static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers::default());
}

impl UringEngine {
    /// Makes an engine that works within `limits`, until `stop`.
    ///
    /// # Errors
    /// Why this kernel, container or user may not have one.
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

    /// Logs, once, that the kernel refuses a ring after it granted the first: descriptors or memory
    /// are short.
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
            let mut buffers = BUFFERS.take();
            let ran = Worker::new(&self.setup, work, ring, &mut buffers).run();
            match ran {
                Ok(()) => BUFFERS.set(buffers.kept()),
                Err(_) => *kept = None,
            }
            ran
        });
        if let Err(e) = ran {
            self.say(&e);
            self.setup.plain.run(work);
        }
    }

    fn rest(&self) {
        drop(BUFFERS.take());
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
