//! Helpers: scanning, building and mapping in one step; control blocks; the kernel's answers.

use monarch_abi::control::ControlMap;
use monarch_abi::resolve::Segments;
use monarch_abi::segment::Segment;
use monarch_storage::held_dir::HeldDir;
use monarch_storage::index::{Built, ScanOptions, ScanProgress, build, scan};
use monarch_storage::shm;
use proptest::test_runner::Config;
use rustix::fs::{AtFlags, CWD, Stat};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A property-test configuration that leaves no files behind. `PROPTEST_CASES` asks for more cases
/// than usual.
pub(crate) fn cases(n: u32) -> Config {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|v| v.parse().ok());
    Config { cases: asked.unwrap_or(n), failure_persistence: None, ..Config::default() }
}

pub(crate) fn built_within(root: &Path, threads: usize, max_memory: u64, seed: u64) -> Built {
    let tree = scan(root, ScanOptions { threads, max_memory }, &ScanProgress::default()).expect("scan");
    build(tree, seed, monarch_storage::sys::random_uuid())
}

pub(crate) fn built(root: &Path) -> Built {
    built_within(root, 2, u64::MAX, 7)
}

/// A directory, held.
pub(crate) fn held(dir: &Path) -> Arc<HeldDir> {
    Arc::new(HeldDir::at(dir).expect("directory"))
}

/// Writes a segment into `dir` and maps it, as the agent does.
pub(crate) fn publish(dir: &Path, built: &Built) -> Segment<'static> {
    shm::create_segment(
        &held(dir),
        &built.index,
        &built.buckets,
        monarch_storage::sys::random_uuid(),
        shm::Chunking { threshold: 16 << 20, size: 4 << 20 },
        shm::Checks::default(),
    )
    .expect("segment")
    .0
}

/// A tree below a temporary directory with its segment.
pub(crate) struct Indexed {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) root: PathBuf,
    pub(crate) segment: Segment<'static>,
}

impl Indexed {
    /// `fill` makes what is below the root.
    pub(crate) fn new(fill: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().expect("temp dir");
        let root = dir.path().canonicalize().expect("real path").join("root");
        std::fs::create_dir(&root).expect("mkdir");
        fill(&root);
        let segment = publish(dir.path(), &built(&root));
        Self { dir, root, segment }
    }
}

/// A way to write the path of a root.
pub(crate) struct Spelled {
    pub(crate) path: PathBuf,
    pub(crate) sub: &'static str,
    pub(crate) root: usize,
}

/// A control block with roots and spellings.
pub(crate) fn control(dir: &Path, roots: &[PathBuf], spellings: &[Spelled]) -> ControlMap<'static> {
    let dir = held(dir);
    let map = shm::create_control(&dir, shm::ControlParams { mnt_ns: 0, slash: (0, 0), user_ns: 0, pid_ns: 0 })
        .expect("control block");
    for (slot, path) in map.ctl.roots.iter().zip(roots) {
        shm::put_str(&dir, &map, &slot.path, bytes(path)).expect("string");
    }
    map.ctl.roots_len.store(roots.len() as u32, Ordering::Release);
    for (slot, s) in map.ctl.spellings.iter().zip(spellings) {
        shm::put_str(&dir, &map, &slot.path, bytes(&s.path)).expect("string");
        shm::put_str(&dir, &map, &slot.sub, s.sub.as_bytes()).expect("string");
        slot.root.store(s.root as u32, Ordering::Relaxed);
    }
    map.ctl.spellings_len.store(spellings.len() as u32, Ordering::Release);
    map
}

/// One segment per root.
pub(crate) struct BySegment(pub(crate) Vec<Segment<'static>>);

impl Segments<'static> for BySegment {
    fn segment(&self, root: usize) -> Option<(usize, &'static Segment<'static>)> {
        // Mappings are never unmapped; so the handful of words that point at them may leak.
        self.0.get(root).map(|s| (root, &*Box::leak(Box::new(*s))))
    }
}

pub(crate) fn bytes(path: &Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}

pub(crate) fn as_path(bytes: &[u8]) -> &Path {
    Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes))
}

/// A path as text, for messages.
pub(crate) fn shown(path: &[u8]) -> String {
    path.escape_ascii().to_string()
}

/// `stat` or `lstat`.
pub(crate) fn kernel(path: &[u8], follow: bool) -> rustix::io::Result<Stat> {
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    rustix::fs::statat(CWD, path, flags)
}

/// Type bits of a mode.
pub(crate) const fn kind(mode: u32) -> u32 {
    mode & 0o170_000
}
