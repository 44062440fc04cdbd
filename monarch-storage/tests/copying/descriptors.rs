//! Copy engines on files that the kernel can read itself: on local file systems, and on a stand-in
//! for a PFS that fails on command. Many files at a time.

use crate::engines::{End, IO_BYTES, Make, Seen, copy, data, engines, errno, sink, written};
use monarch_storage::engine::{
    CopyEngine, CopyError, FailingSink, Limits, Marks, PfsSource, Sink, Source, Task, UringEngine, UringOptions, Work,
};
use slowfs::{CacheMode, FaultKind, FaultSpec, MutationKind, Op, Slowfs, When};
use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Files to be copied together.
struct Batch<'a> {
    from: &'a dyn Source,
    files: Vec<File>,
    /// Indices of the files not taken yet.
    left: RefCell<Vec<usize>>,
    /// In the order in which they ended.
    ends: RefCell<Vec<(usize, End, Instant)>>,
}

struct File {
    rel: String,
    size: u64,
    to: FailingSink,
    seen: Seen,
}

struct One<'a>(&'a Batch<'a>, usize);

impl<'a> Batch<'a> {
    fn new(from: &'a dyn Source, files: impl IntoIterator<Item = (String, u64)>) -> Self {
        let file = |(rel, size)| File { rel, size, to: sink(), seen: Seen::default() };
        let files: Vec<File> = files.into_iter().map(file).collect();
        let left = RefCell::new((0..files.len()).rev().collect());
        Self { from, files, left, ends: RefCell::default() }
    }

    /// Copies them; how each ended, in the order of the files.
    fn run(&self, engine: &dyn CopyEngine) -> Vec<End> {
        engine.run(self);
        let mut ends = self.ends.take();
        assert!(self.files.iter().all(|f| f.seen.inside.load(Ordering::Relaxed) == 0), "marks are even");
        ends.sort_by_key(|e| e.0);
        assert!(ends.iter().map(|e| e.0).eq(0..self.files.len()), "each file ends once");
        ends.into_iter().map(|e| e.1).collect()
    }
}

impl Work for Batch<'_> {
    fn next(&self) -> Option<Box<dyn Task + '_>> {
        let at = self.left.borrow_mut().pop()?;
        Some(Box::new(One(self, at)))
    }
}

impl One<'_> {
    fn file(&self) -> &File {
        &self.0.files[self.1]
    }
}

impl Task for One<'_> {
    fn source(&self) -> &dyn Source {
        self.0.from
    }
    fn rel(&self) -> &[u8] {
        self.file().rel.as_bytes()
    }
    fn range(&self) -> std::ops::Range<u64> {
        0..self.file().size
    }
    fn sink(&self) -> &dyn Sink {
        &self.file().to
    }
    fn marks(&self) -> &dyn Marks {
        &self.file().seen
    }
    fn done(&mut self, end: End) -> bool {
        self.0.ends.borrow_mut().push((self.1, end, Instant::now()));
        false
    }
}

/// A directory on this machine's disk, or in its memory.
fn dirs() -> Vec<tempfile::TempDir> {
    let memory = tempfile::tempdir_in("/dev/shm").ok();
    memory.into_iter().chain(tempfile::tempdir()).collect()
}

/// All engines, and those that read past the page cache.
fn makes() -> Vec<Make> {
    let mut makes = engines();
    if makes.len() > 1 {
        makes.push(|io_size, limits, stop| {
            let options = UringOptions { io_size, depth: 8, direct: true };
            Box::new(UringEngine::new(options, limits, stop).expect("io_uring"))
        });
    }
    makes
}

/// Runs a requirement with every engine.
fn each(requirement: impl Fn(&dyn CopyEngine)) {
    for make in makes() {
        let engine = make(IO_BYTES as u64, Arc::default(), Arc::default());
        println!("engine {}", engine.name());
        requirement(&*engine);
    }
}

fn source(dir: &Path) -> PfsSource {
    PfsSource::new(dir).expect("root")
}

fn put(dir: &Path, name: &str, size: usize) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, data(size)).expect("write");
    path
}

/// A stand-in for a PFS over a directory.
struct Pfs {
    fs: Slowfs,
    backing: tempfile::TempDir,
    _mount: tempfile::TempDir,
}

impl Pfs {
    fn new(latency: Duration) -> Self {
        let (backing, mount) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
        let exe = std::env::current_exe().expect("own path");
        let programs = std::env::var_os("MONARCH_E2E_BIN").map(PathBuf::from);
        let programs = programs.unwrap_or_else(|| exe.ancestors().nth(3).expect("target").join("release"));
        let program = programs.join("slowfs");
        let fs = Slowfs::builder(backing.path(), mount.path()).program(program).cache(CacheMode::Direct);
        let fs = fs.meta_latency(latency).data_latency(latency).spawn().expect("slowfs of a release build");
        Self { fs, backing, _mount: mount }
    }

    fn source(&self) -> PfsSource {
        source(self.fs.mountpoint())
    }

    fn fault(&self, spec: FaultSpec) {
        self.fs.clear().expect("clear");
        self.fs.fault(spec).expect("fault");
    }
}

#[test]
fn files_of_all_sizes_together() {
    for dir in dirs() {
        let sizes =
            [0, 1, 511, 4095, IO_BYTES, IO_BYTES + 1, 3 * IO_BYTES, 100 * IO_BYTES - 1, 130 * IO_BYTES + 7, 700_001];
        let files: Vec<(String, u64)> = (0..300).map(|n| (format!("f{n}"), sizes[n % sizes.len()] as u64)).collect();
        files.iter().for_each(|(name, size)| drop(put(dir.path(), name, *size as usize)));
        let from = source(dir.path());
        each(|engine| {
            let batch = Batch::new(&from, files.clone());
            for (end, file) in batch.run(engine).into_iter().zip(&batch.files) {
                let done = end.expect("copied");
                let st = std::fs::metadata(dir.path().join(&file.rel)).expect("stat");
                let all = data(file.size as usize);
                assert!(written(&file.to) == all, "{}", file.rel);
                assert_eq!((done.bytes, done.checksum), (file.size, Some(xxhash_rust::xxh3::xxh3_64(&all))));
                let identity = done.identity.expect("asked for");
                assert_eq!((identity.size, identity.ino), (file.size, st.ino()));
                assert_eq!(identity.mtime_ns, st.mtime() * 1_000_000_000 + st.mtime_nsec());
                assert_eq!(identity.ctime_ns, st.ctime() * 1_000_000_000 + st.ctime_nsec());
            }
        });
    }
}

#[test]
fn no_descriptor_is_left_open() {
    let open = || std::fs::read_dir("/proc/self/fd").expect("fds").count();
    let dir = tempfile::tempdir().expect("dir");
    (0..200).for_each(|n| drop(put(dir.path(), &format!("f{n}"), 3 * IO_BYTES)));
    let from = source(dir.path());
    each(|engine| {
        let run = || {
            let files = (0..200).map(|n| (format!("f{n}"), (2 + n % 3) * IO_BYTES as u64));
            Batch::new(&from, files).run(engine);
        };
        run();
        let before = open();
        (0..3).for_each(|_| run());
        // Other tests of this process come and go.
        assert!(open() < before + 50, "{before} before, {} after 600 files", open());
    });
}

#[test]
fn only_regular_files_beneath_the_root_are_opened() {
    let dir = tempfile::tempdir().expect("dir");
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("d")).expect("mkdir");
    put(dir.path(), "d/f", 10);
    std::os::unix::fs::symlink("d/f", at("link")).expect("symlink");
    std::os::unix::fs::symlink("d", at("dirlink")).expect("symlink");
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("fifo");
    let from = source(&at("d"));
    let above = source(dir.path());
    each(|engine| {
        let end = |from: &PfsSource, rel: &str| {
            let mut ends = Batch::new(from, [(rel.to_owned(), 10)]).run(engine);
            errno(&ends.remove(0))
        };
        assert_eq!(end(&above, "d/f"), None, "a good one");
        assert_eq!(end(&above, "none"), Some(libc::ENOENT));
        assert_eq!(end(&above, "d"), Some(libc::EINVAL));
        assert_eq!(end(&above, "pipe"), Some(libc::EINVAL));
        assert_eq!(end(&above, "link"), Some(libc::ELOOP));
        assert_eq!(end(&above, "dirlink/f"), Some(libc::ELOOP));
        assert_eq!(end(&from, "../d/f"), Some(libc::EXDEV));
    });
}

#[test]
fn one_full_sink_fails_one_copy_of_many() {
    let dir = tempfile::tempdir().expect("dir");
    (0..40).for_each(|n| drop(put(dir.path(), &format!("f{n}"), 5 * IO_BYTES)));
    let from = source(dir.path());
    each(|engine| {
        let mut batch = Batch::new(&from, (0..40).map(|n| (format!("f{n}"), 5 * IO_BYTES as u64)));
        for (at, errno) in [(3, libc::ENOSPC), (20, libc::EDQUOT), (39, libc::EIO)] {
            batch.files[at].to = FailingSink { after: AtomicU64::new(2), errno, ..sink() };
        }
        let ends = batch.run(engine);
        for (at, end) in ends.iter().enumerate() {
            let failing = batch.files[at].to.errno;
            match at {
                3 | 20 | 39 => {
                    assert!(matches!(end, Err(CopyError::Sink(_))) && errno(end) == Some(failing), "{end:?}");
                }
                _ => assert!(end.is_ok(), "{at}: {end:?}"),
            }
        }
    });
}

#[test]
fn a_file_that_is_shorter_than_it_was_has_changed() {
    for dir in dirs() {
        let from = source(dir.path());
        each(|engine| {
            for now in [0, 1, IO_BYTES, 2 * IO_BYTES, 9 * IO_BYTES - 1] {
                put(dir.path(), "f", now);
                let end = copy(engine, &from, &sink(), 9 * IO_BYTES as u64);
                assert!(matches!(end, Err(CopyError::Changed)), "{now} bytes left: {end:?}");
            }
            put(dir.path(), "f", 12 * IO_BYTES);
            let to = sink();
            let done = copy(engine, &from, &to, IO_BYTES as u64 + 1).expect("the identity tells, not the engine");
            assert_eq!(
                (done.bytes, done.identity.map(|id| id.size)),
                (IO_BYTES as u64 + 1, Some(12 * IO_BYTES as u64))
            );
            assert!(written(&to) == data(12 * IO_BYTES)[..=IO_BYTES], "not a byte more");
        });
    }
}

#[test]
fn a_stop_ends_everything() {
    let dir = tempfile::tempdir().expect("dir");
    (0..100).for_each(|n| drop(put(dir.path(), &format!("f{n}"), 50 * IO_BYTES)));
    let from = source(dir.path());
    for make in makes() {
        // 20 MB at 1 MiB/s: it is stopped long before it is done.
        let stop = Arc::new(AtomicBool::new(false));
        let limits = Arc::new(Limits::new(Some(1 << 20), None));
        let engine = make(IO_BYTES as u64, limits, stop.clone());
        let start = Instant::now();
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                stop.store(true, Ordering::Relaxed);
            });
            let batch = Batch::new(&from, (0..100).map(|n| (format!("f{n}"), 50 * IO_BYTES as u64)));
            let ends = batch.run(&*engine);
            assert!(ends.iter().any(|e| matches!(e, Err(CopyError::Stopped))));
            assert!(ends.iter().all(|e| matches!(e, Ok(_) | Err(CopyError::Stopped))));
        });
        assert!(start.elapsed() < Duration::from_secs(3), "{}: {:?}", engine.name(), start.elapsed());
    }
}

#[test]
fn the_limits_hold_for_many_files_together() {
    let dir = tempfile::tempdir().expect("dir");
    (0..40).for_each(|n| drop(put(dir.path(), &format!("f{n}"), 100)));
    let from = source(dir.path());
    for make in makes() {
        // 120 calls at 100 a second, of which 10 come at once.
        let engine = make(IO_BYTES as u64, Arc::new(Limits::new(None, Some(100))), Arc::default());
        let start = Instant::now();
        let batch = Batch::new(&from, (0..40).map(|n| (format!("f{n}"), 100)));
        assert!(batch.run(&*engine).iter().all(Result::is_ok));
        let took = start.elapsed().as_secs_f64();
        assert!((1.0..3.0).contains(&took), "{}: 120 calls at 100/s took {took} s", engine.name());
    }
}

#[test]
fn each_failure_of_a_pfs_ends_a_copy_with_its_error() {
    let pfs = Pfs::new(Duration::ZERO);
    let from = pfs.source();
    each(|engine| {
        put(pfs.backing.path(), "f", 20 * IO_BYTES);
        let all = data(20 * IO_BYTES);
        let size = all.len() as u64;
        let good = |what: &str| {
            let to = sink();
            let end = copy(engine, &from, &to, size);
            assert!(end.is_ok() && written(&to) == all, "{what}: {end:?}");
        };
        for (kind, op, after, is) in [
            (FaultKind::EIO, Op::Read, 0, libc::EIO),
            (FaultKind::EIO, Op::Read, 7, libc::EIO),
            (FaultKind::ESTALE, Op::Read, 3, libc::ESTALE),
            (FaultKind::Errno(libc::EACCES), Op::Open, 0, libc::EACCES),
        ] {
            pfs.fault(FaultSpec::new(kind).ops(&[op]).after(after));
            let end = copy(engine, &from, &sink(), size);
            assert!(matches!(end, Err(CopyError::Source(_))) && errno(&end) == Some(is), "{kind} of {op:?}: {end:?}");
        }
        for bytes in [1000, 4095, 4096 - 512] {
            pfs.fault(FaultSpec::new(FaultKind::ShortRead(bytes)).ops(&[Op::Read]).count(30));
            good("short reads");
        }
        for errno in [libc::EINTR, libc::EAGAIN] {
            pfs.fault(FaultSpec::new(FaultKind::Errno(errno)).ops(&[Op::Read]).after(2).count(9));
            good("interrupted reads");
        }
        pfs.fs.clear().expect("clear");
        pfs.fs.mutate("f", MutationKind::Shrink, When::AfterRead(3)).expect("mutate");
        let end = copy(engine, &from, &sink(), size);
        assert!(matches!(end, Err(CopyError::Changed)), "shrunk while it was copied: {end:?}");
        put(pfs.backing.path(), "f", 20 * IO_BYTES);
        let before = from.identity(b"f").expect("identity");
        pfs.fs.mutate("f", MutationKind::Change, When::AfterRead(3)).expect("mutate");
        let end = copy(engine, &from, &sink(), size).expect("the identity tells");
        assert_ne!(end.identity, Some(before), "changed while it was copied");
    });
}

#[test]
fn a_file_that_hangs_holds_up_no_other() {
    let pfs = Pfs::new(Duration::ZERO);
    (0..30).for_each(|n| drop(put(pfs.backing.path(), &format!("f{n}"), 2 * IO_BYTES)));
    let from = pfs.source();
    for make in engines().into_iter().skip(1) {
        let engine = make(IO_BYTES as u64, Arc::default(), Arc::default());
        pfs.fault(FaultSpec::new(FaultKind::Stall(Some(Duration::from_secs(5)))).ops(&[Op::Read]).path("f3"));
        let batch = Batch::new(&from, (0..30).map(|n| (format!("f{n}"), 2 * IO_BYTES as u64)));
        engine.run(&batch);
        let ends = batch.ends.take();
        let (last, others) = ends.split_last().expect("ends");
        assert!(last.0 == 3 && last.1.is_ok());
        assert!(others.iter().all(|o| last.2.duration_since(o.2) > Duration::from_millis(500)));
    }
}

#[test]
fn latency_is_hidden_by_depth() {
    // 240 calls of 5 ms: 1.2 s one after the other, 8 at a time much less.
    let pfs = Pfs::new(Duration::from_millis(5));
    (0..80).for_each(|n| drop(put(pfs.backing.path(), &format!("f{n}"), 100)));
    let from = pfs.source();
    for make in engines().into_iter().skip(1) {
        let engine = make(IO_BYTES as u64, Arc::default(), Arc::default());
        let run = || {
            let start = Instant::now();
            let batch = Batch::new(&from, (0..80).map(|n| (format!("f{n}"), 100)));
            assert!(batch.run(&*engine).iter().all(Result::is_ok));
            start.elapsed()
        };
        // (In one of three runs at least: the machine may be busy.)
        assert!((0..3).any(|_| run() < Duration::from_millis(700)), "hardly faster than one after the other");
    }
}
