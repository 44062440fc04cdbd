//! Copies one staged file into its part file on the PFS.

use crate::latency::LatencyLimit;
use crate::lease::{LeaseWatch, LeasedFile};
use crate::plan::{CopyRequest, join, parent};
use crate::staging::StagingDir;
use crate::sys::LeaseAnswer;
use crate::target::{Attributes, Kind, OutputTarget, Owner, TargetFile, TargetStat, extended_of, no_list_of};
use monarch_abi::outputs::STAGED_MODE;
use monarch_abi::outputs::names::{Staged, part_name};
use monarch_storage::token_bucket::TokenBucket;
use rustix::fd::AsFd;
use rustix::fs::{SeekFrom, Stat};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a write.
pub const WRITE_BYTES: usize = 4 << 20;
/// How long a chunk waits for demand reads of the job at most.
const MAX_YIELD: Duration = Duration::from_secs(1);
/// How often it asks whether they are done.
const YIELD_POLL: Duration = Duration::from_millis(5);

/// Whether the agent lets copies go on, or demand reads need the PFS.
pub type MayCopy = Arc<dyn Fn() -> bool + Send + Sync>;

/// What all copies of a root share.
pub struct CopyContext {
    /// Where the staged files are.
    pub staging: Arc<StagingDir>,
    /// Where they go.
    pub target: Arc<dyn OutputTarget>,
    /// Leases.
    pub leases: LeaseWatch,
    /// Most bytes a second.
    pub bandwidth: Option<Arc<TokenBucket>>,
    /// Demand reads first.
    pub may_copy: MayCopy,
    /// Latency of the PFS.
    pub latency: LatencyLimit,
    /// Bytes copied.
    pub copied_bytes: AtomicU64,
    /// Set when the drain ends: copies give up.
    pub is_stopping: AtomicBool,
}

impl std::fmt::Debug for CopyContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyContext").field("staging", &self.staging).finish_non_exhaustive()
    }
}

/// A copy that runs.
#[derive(Debug, Default)]
pub struct CopyProgress {
    /// Bytes copied so far.
    pub bytes: AtomicU64,
    /// Set when the file is not to be published any more: the copy gives up.
    pub is_cancelled: AtomicBool,
}

/// A copy that is complete on the PFS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedPart {
    /// Where it is: the part file, or the published file if an earlier agent renamed it.
    pub path: Vec<u8>,
    /// Its device.
    pub dev: u64,
    /// Its inode number.
    pub ino: u64,
    /// Its bytes.
    pub size: u64,
    /// The attributes that it was given.
    pub attributes: Attributes,
}

/// How a copy ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyOutcome {
    /// All bytes are on the PFS.
    Copied(CopiedPart),
    /// Something has the staged file open for writing.
    Refused,
    /// There is no such staged file.
    Gone,
    /// The drain ends, or the file is not to be published any more.
    Stopped,
    /// An error, and what was tried.
    Failed(Failure),
}

/// What failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was tried.
    pub what: &'static str,
    /// On which name below the output root.
    pub path: Vec<u8>,
    /// What the kernel said.
    pub errno: Errno,
    /// Whether it is trouble of the tier, and not of the PFS: calls of the job never get its error.
    pub is_of_tier: bool,
}

impl Failure {
    /// An error of an attempt on the PFS.
    pub fn new(what: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> Self + use<> {
        let path = path.to_vec();
        move |errno| Self { what, path, errno, is_of_tier: false }
    }

    /// An error of an attempt on a file of the staging directory: the agent's own, for an empty
    /// name, or the staged file of a name.
    pub fn of_tier(what: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> Self + use<> {
        let path = path.to_vec();
        move |errno| Self { what, path, errno, is_of_tier: true }
    }
}

/// The attributes that a published file gets from its staged file.
#[must_use]
pub fn attributes_of(st: &Stat, owner_changed: bool) -> Attributes {
    let ns = |s: i64, ns: i64| s.saturating_mul(1_000_000_000).saturating_add(ns);
    Attributes {
        mode: st.st_mode & 0o7777 & !STAGED_MODE,
        owner: owner_changed.then_some(Owner { uid: st.st_uid, gid: st.st_gid }),
        atime_ns: ns(st.st_atime, st.st_atime_nsec as i64),
        mtime_ns: ns(st.st_mtime, st.st_mtime_nsec as i64),
    }
}

/// Why a copy was given up.
enum Stop {
    Refused,
    Stopped,
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Copies a staged file. `progress` counts its bytes, and may end it.
pub fn copy(context: &CopyContext, request: &CopyRequest, progress: &CopyProgress) -> CopyOutcome {
    let data = match context.staging.open_data(&request.staged) {
        Ok(data) => data,
        Err(Errno::NOENT) => return CopyOutcome::Gone,
        Err(errno) => return CopyOutcome::Failed(Failure::of_tier("open the staged file of", &request.target)(errno)),
    };
    let lease = match context.leases.take(data) {
        Ok(lease) => lease,
        Err(LeaseAnswer::Unsupported(errno)) => {
            let errno = Errno::from_raw_os_error(errno);
            return CopyOutcome::Failed(Failure::of_tier("get a lease on the staged file of", &request.target)(errno));
        }
        Err(_) => return CopyOutcome::Refused,
    };
    match copy_leased(context, request, &lease.file, progress) {
        Ok(part) if lease.file.is_unchanged() => CopyOutcome::Copied(part),
        Ok(_) | Err(Stop::Refused) => CopyOutcome::Refused,
        Err(Stop::Stopped) => CopyOutcome::Stopped,
        Err(Stop::Failed(failure)) => CopyOutcome::Failed(failure),
    }
}

fn copy_leased(
    context: &CopyContext,
    request: &CopyRequest,
    data: &LeasedFile,
    progress: &CopyProgress,
) -> Result<CopiedPart, Stop> {
    let st = rustix::fs::fstat(&data.fd).map_err(Failure::of_tier("stat the staged file of", &request.target))?;
    let attributes = attributes_of(&st, request.owner_changed);
    let name = part_name(context.staging.info().instance, request.staged.id);
    let found = open_part(context, request, &name)?;
    let (path, part) = match found {
        Some(found) => found,
        None => {
            if let Some(part) = already_published(context, request, &st) {
                // Set after the copy that was published.
                if request.extended_changed {
                    let open = context.target.open(&part.path);
                    let file = open.map_err(Failure::new("open the part file of", &request.target))?;
                    let before = file.stat().map_err(Failure::new("stat the part file of", &request.target))?;
                    set_extended(request, data, file.as_ref())?;
                    let set = file.set_attributes(&part.attributes, &before);
                    set.map_err(Failure::new("set the attributes of", &request.target))?;
                    file.sync().map_err(Failure::new("sync", &request.target))?;
                }
                return Ok(part);
            }
            let path = join(parent(&request.target), &name);
            let part = context.target.create(&path, attributes.mode);
            (path, part.map_err(Failure::new("create the part file of", &request.target))?)
        }
    };
    let before = part.stat().map_err(Failure::new("stat the part file of", &request.target))?;
    copy_bytes(context, request, data, (part.as_ref(), before.size), st.st_size as u64, progress)?;
    set_extended(request, data, part.as_ref())?;
    part.set_attributes(&attributes, &before).map_err(Failure::new("set the attributes of", &request.target))?;
    part.sync().map_err(Failure::new("sync", &request.target))?;
    let done = part.stat().map_err(Failure::new("stat the part file of", &request.target))?;
    if done.size != st.st_size as u64 {
        return Err(Failure::new("copy all bytes of", &request.target)(Errno::IO).into());
    }
    Ok(CopiedPart { path, dev: done.dev, ino: done.ino, size: done.size, attributes })
}

/// Gives the part file the extended attributes of the staged file. What the PFS does not take is
/// left out: the call that set it was told so, where that was possible, and the file must not wait
/// for it.
fn set_extended(request: &CopyRequest, data: &LeasedFile, part: &dyn TargetFile) -> Result<(), Failure> {
    let failure = Failure::of_tier("read the extended attributes of", &request.target);
    let read = || {
        let mut extended = extended_of(data.fd.as_fd())?;
        // (Before a process changes some, it gives the staged file the list of the part file.)
        if request.extended_changed {
            extended.extend(no_list_of(data.fd.as_fd())?);
        }
        Ok(extended)
    };
    let extended = read().map_err(failure)?;
    if extended.is_empty() && !request.extended_changed {
        return Ok(());
    }
    match part.set_extended(&extended) {
        Err(errno) if is_not_taken(errno) => {
            let path = String::from_utf8_lossy(&request.target);
            tracing::warn!("{path} is published without its extended attributes: {errno}");
            Ok(())
        }
        done => done.map_err(Failure::new("set the extended attributes of", &request.target)),
    }
}

/// Whether the error says that the PFS does not take an extended attribute.
const fn is_not_taken(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOTSUP
            | Errno::NOSYS
            | Errno::NOSPC
            | Errno::TOOBIG
            | Errno::RANGE
            | Errno::INVAL
            | Errno::PERM
            | Errno::ACCESS
    )
}

/// A part file that is open, and its path.
type OpenPart = (Vec<u8>, Box<dyn TargetFile>);

/// Opens the part file: where it was made, or in the directory of its target, if one was made
/// there.
fn open_part(context: &CopyContext, request: &CopyRequest, name: &[u8]) -> Result<Option<OpenPart>, Stop> {
    let dirs = [request.part_dir.as_slice(), parent(&request.target)];
    let count = if dirs[0] == dirs[1] { 1 } else { 2 };
    for dir in dirs.into_iter().take(count) {
        let path = join(dir, name);
        let began = Instant::now();
        let opened = context.target.open(&path);
        context.latency.note(began.elapsed());
        match opened {
            Ok(part) => return Ok(Some((path, part))),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => return Err(Failure::new("open the part file of", &request.target)(errno).into()),
        }
    }
    Ok(None)
}

/// The published file of a staged file that an earlier agent has renamed and not logged: it has the
/// inode of the part file, and size and time of the staged file.
fn already_published(context: &CopyContext, request: &CopyRequest, st: &Stat) -> Option<CopiedPart> {
    let attributes = attributes_of(st, request.owner_changed);
    std::iter::once(&request.target).chain(&request.former).find_map(|path| {
        let found = context.target.stat(path).ok()?;
        let is_same = is_part_of(&found, &request.staged)
            && found.size == st.st_size as u64
            && is_same_time(found.mtime_ns, attributes.mtime_ns);
        is_same.then(|| CopiedPart {
            path: path.clone(),
            dev: found.dev,
            ino: found.ino,
            size: found.size,
            attributes: Attributes { mode: found.mode, ..attributes },
        })
    })
}

/// Whether a published file was the part file of a staged file.
#[must_use]
pub fn is_part_of(found: &TargetStat, staged: &Staged) -> bool {
    found.kind == Kind::File && found.ino == staged.ino && found.dev == staged.dev
}

/// Whether a time is the other, to what the file system keeps of it.
pub fn is_same_time(kept: i64, given: i64) -> bool {
    [1, 100, 1000, 1_000_000, 1_000_000_000].iter().any(|unit| given.div_euclid(*unit) * unit == kept)
}

fn copy_bytes(
    context: &CopyContext,
    request: &CopyRequest,
    data: &LeasedFile,
    (part, former_size): (&dyn TargetFile, u64),
    size: u64,
    progress: &CopyProgress,
) -> Result<(), Stop> {
    let read = |errno| Stop::from(Failure::of_tier("read the staged file of", &request.target)(errno));
    let write = |errno| Stop::from(Failure::new("write", &request.target)(errno));
    if former_size > 0 {
        part.set_len(0).map_err(write)?;
    }
    let mut buffer = vec![0; WRITE_BYTES.min(usize::try_from(size).unwrap_or(WRITE_BYTES)).max(1)];
    let (mut at, mut end_written) = (0, 0);
    while at < size {
        // Holes stay holes.
        let from = match rustix::fs::seek(&data.fd, SeekFrom::Data(at)) {
            Ok(from) => from,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => at,
            Err(errno) => return Err(read(errno)),
        };
        at = from;
        let end = rustix::fs::seek(&data.fd, SeekFrom::Hole(at)).unwrap_or(size).min(size).max(at + 1).min(size);
        while at < end {
            give_way(context, data, progress)?;
            let want = buffer.len().min(usize::try_from(end - at).unwrap_or(buffer.len()));
            let got =
                rustix::io::retry_on_intr(|| rustix::io::pread(&data.fd, &mut buffer[..want], at)).map_err(read)?;
            if got == 0 {
                return Err(Stop::Refused);
            }
            throttle(context, got);
            write_all(part, &buffer[..got], at).map_err(write)?;
            at += got as u64;
            end_written = at;
            progress.bytes.store(at, Ordering::Relaxed);
            context.copied_bytes.fetch_add(got as u64, Ordering::Relaxed);
        }
    }
    if end_written < size {
        part.set_len(size).map_err(write)?;
    }
    Ok(())
}

fn write_all(part: &dyn TargetFile, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let n = part.write_at(bytes, at)?;
        if n == 0 {
            return Err(Errno::NOSPC);
        }
        (bytes, at) = (&bytes[n..], at + n as u64);
    }
    Ok(())
}

fn throttle(context: &CopyContext, bytes: usize) {
    if let Some(bandwidth) = &context.bandwidth {
        std::thread::sleep(bandwidth.take(bytes as f64, Instant::now()));
    }
}

/// Lets demand reads go first, and gives up when a writer opens the file or the drain ends.
fn give_way(context: &CopyContext, data: &LeasedFile, progress: &CopyProgress) -> Result<(), Stop> {
    let began = Instant::now();
    loop {
        if context.is_stopping.load(Ordering::Acquire) || progress.is_cancelled.load(Ordering::Acquire) {
            return Err(Stop::Stopped);
        }
        if !data.is_unchanged() {
            return Err(Stop::Refused);
        }
        if (context.may_copy)() || began.elapsed() > MAX_YIELD {
            return Ok(());
        }
        std::thread::sleep(YIELD_POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_compared_to_what_a_file_system_keeps() {
        let given = 1_700_000_000_123_456_789;
        for kept in [given, 1_700_000_000_123_456_700, 1_700_000_000_123_456_000, 1_700_000_000_000_000_000] {
            assert!(is_same_time(kept, given), "{kept}");
        }
        assert!(!is_same_time(given + 1, given));
    }
}
