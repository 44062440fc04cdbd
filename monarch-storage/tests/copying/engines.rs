//! Requirements of every copy engine, driven by test doubles.
//!
//! The requirements are functions over `&dyn CopyEngine`; an engine is one line in [`engines`].

use monarch_abi::hash::Identity;
use monarch_storage::engine::{
    Copied, CopyEngine, CopyError, FailingSink, FailingSource, Limits, Marks, MemSource, Sink, SlowSource, Source,
    SourceFile, Task, ThreadsEngine, UringEngine, UringOptions, Work,
};
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Request size of the engines under test, in bytes.
pub(crate) const IO_BYTES: usize = 4096;

/// Makes an engine with this request size, these limits and this stop flag.
pub(crate) type Make = fn(u64, Arc<Limits>, Arc<AtomicBool>) -> Box<dyn CopyEngine>;

/// All engines.
pub(crate) fn engines() -> Vec<Make> {
    let threads: Make = |io_size, limits, stop| Box::new(ThreadsEngine::new(io_size, limits, stop));
    let uring: Make = |io_size, limits, stop| {
        let options = UringOptions { io_size, depth: 8, direct: false };
        Box::new(UringEngine::new(options, limits, stop).expect("io_uring"))
    };
    match UringEngine::new(UringOptions { io_size: 4096, depth: 8, direct: false }, Arc::default(), Arc::default()) {
        Ok(_) => vec![threads, uring],
        Err(e) => {
            println!("without uring: {e}");
            vec![threads]
        }
    }
}

/// Runs a requirement with every engine.
fn each(requirement: fn(&dyn CopyEngine)) {
    for make in engines() {
        let engine = make(IO_BYTES as u64, Arc::default(), Arc::default());
        println!("engine {}", engine.name());
        requirement(&*engine);
    }
}

/// Counts marks: calls under way, most at once, PFS calls, progress.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) inside: AtomicI64,
    calls: AtomicU64,
    progress: AtomicU64,
}

impl Marks for Seen {
    fn in_pfs(&self, inside: bool) {
        let by = if inside { 1 } else { -1 };
        let now = self.inside.fetch_add(by, Ordering::Relaxed) + by;
        assert!(now >= 0, "left a PFS call twice");
        self.calls.fetch_add(inside.into(), Ordering::Relaxed);
    }
    fn progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }
    fn waited_for(&self) -> bool {
        true
    }
}

pub(crate) fn sink() -> FailingSink {
    FailingSink { data: Mutex::default(), after: AtomicU64::new(u64::MAX), errno: libc::ENOSPC }
}

pub(crate) fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

pub(crate) fn written(sink: &FailingSink) -> Vec<u8> {
    sink.data.lock().expect("lock").clone()
}

/// How a copy ended.
pub(crate) type End = Result<Copied, CopyError>;

/// The file `f` of a source, to be copied once.
struct Once<'a> {
    from: &'a dyn Source,
    to: &'a dyn Sink,
    size: u64,
    seen: &'a Seen,
    given: Cell<bool>,
    end: RefCell<Option<End>>,
}

struct OnceTask<'a>(&'a Once<'a>);

impl Work for Once<'_> {
    fn next(&self) -> Option<Box<dyn Task + '_>> {
        (!self.given.replace(true)).then(|| Box::new(OnceTask(self)) as Box<dyn Task>)
    }
}

impl Task for OnceTask<'_> {
    fn source(&self) -> &dyn Source {
        self.0.from
    }
    fn rel(&self) -> &[u8] {
        b"f"
    }
    fn range(&self) -> std::ops::Range<u64> {
        0..self.0.size
    }
    fn sink(&self) -> &dyn Sink {
        self.0.to
    }
    fn marks(&self) -> &dyn Marks {
        self.0.seen
    }
    fn done(&mut self, end: End) -> bool {
        assert!(self.0.end.replace(Some(end)).is_none(), "a copy ended twice");
        false
    }
}

/// Copies the file `f` of a source; marks must be even afterwards, however it ended.
pub(crate) fn copy(engine: &dyn CopyEngine, from: &dyn Source, to: &dyn Sink, size: u64) -> End {
    copy_seen(engine, from, to, size, &Seen::default())
}

fn copy_seen(engine: &dyn CopyEngine, from: &dyn Source, to: &dyn Sink, size: u64, seen: &Seen) -> End {
    let once = Once { from, to, size, seen, given: Cell::new(false), end: RefCell::default() };
    engine.run(&once);
    assert_eq!(seen.inside.load(Ordering::Relaxed), 0, "a copier that is not in a PFS call says it is");
    once.end.into_inner().expect("every copy ends")
}

pub(crate) fn errno(end: &End) -> Option<i32> {
    match end {
        Err(CopyError::Source(e) | CopyError::Sink(e)) => e.raw_os_error(),
        _ => None,
    }
}

const ANY_IDENTITY: Identity = Identity { size: 0, mtime_ns: 0, ctime_ns: 0, ino: 0 };

/// A source whose files answer as `answer` says: (number of the call, buffer, offset).
struct Scripted<F>(Arc<Script<F>>);

struct Script<F> {
    calls: AtomicU64,
    answer: F,
}

fn scripted<F: Fn(u64, &mut [u8], u64) -> io::Result<usize>>(answer: F) -> Scripted<F> {
    Scripted(Arc::new(Script { calls: AtomicU64::new(0), answer }))
}

impl<F: Fn(u64, &mut [u8], u64) -> io::Result<usize> + Send + Sync + 'static> Source for Scripted<F> {
    fn open(&self, _rel: &[u8]) -> io::Result<Box<dyn SourceFile>> {
        Ok(Box::new(Scripted(self.0.clone())))
    }
    fn identity(&self, _rel: &[u8]) -> io::Result<Identity> {
        Ok(ANY_IDENTITY)
    }
}

impl<F: Fn(u64, &mut [u8], u64) -> io::Result<usize> + Send + Sync> SourceFile for Scripted<F> {
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<usize> {
        (self.0.answer)(self.0.calls.fetch_add(1, Ordering::Relaxed), buf, off)
    }
    fn identity_now(&self) -> io::Result<Identity> {
        Ok(ANY_IDENTITY)
    }
}

fn fill(all: &[u8], buf: &mut [u8], off: u64) -> usize {
    let rest = all.get(off as usize..).unwrap_or(&[]);
    let n = rest.len().min(buf.len());
    buf[..n].copy_from_slice(&rest[..n]);
    n
}

#[test]
fn all_sizes_are_copied_whole_with_their_checksum() {
    each(|engine| {
        for size in
            [0, 1, 511, IO_BYTES - 1, IO_BYTES, IO_BYTES + 1, 2 * IO_BYTES, 10 * IO_BYTES + 7, 300 * IO_BYTES - 1]
        {
            let (source, to, all) = (MemSource::default(), sink(), data(size));
            source.put(b"f", &all);
            let (seen, identity) = (Seen::default(), source.identity(b"f").expect("identity"));
            let done = copy_seen(engine, &source, &to, size as u64, &seen).expect("copied");
            let checksum = Some(xxhash_rust::xxh3::xxh3_64(&all));
            assert_eq!(done, Copied { bytes: size as u64, checksum, identity: Some(identity) }, "{size}");
            assert!(written(&to) == all, "{size}: other bytes");
            // The open, the reads, and the check of its identity.
            let requests = size.div_ceil(IO_BYTES) as u64 + 2;
            assert_eq!(seen.calls.load(Ordering::Relaxed), requests, "{size}: PFS calls");
            assert!(seen.progress.load(Ordering::Relaxed) >= requests, "{size}: progress");
        }
    });
}

#[test]
fn one_engine_copies_large_and_small_in_turn() {
    each(|engine| {
        // A buffer that is kept between copies must not show what was in it.
        for size in [5 * IO_BYTES, 3, 0, IO_BYTES, 17] {
            let (source, to, all) = (MemSource::default(), sink(), data(size));
            source.put(b"f", &all);
            copy(engine, &source, &to, size as u64).expect("copied");
            assert!(written(&to) == all);
        }
    });
}

#[test]
fn short_reads_are_put_together() {
    each(|engine| {
        for max_read in [1, 7, 1000, IO_BYTES - 1] {
            let (inner, to, all) = (MemSource::default(), sink(), data(3 * IO_BYTES + 5));
            inner.put(b"f", &all);
            let slow = SlowSource { inner, pause: Duration::ZERO, max_read };
            let done = copy(engine, &slow, &to, all.len() as u64).expect("copied");
            assert_eq!(done.checksum, Some(xxhash_rust::xxh3::xxh3_64(&all)));
            assert!(written(&to) == all, "at most {max_read} bytes a read");
        }
    });
}

#[test]
fn a_source_that_fails_after_n_reads_fails_the_copy_with_its_errno() {
    each(|engine| {
        for (after, e) in [(0, libc::EIO), (1, libc::ESTALE), (3, libc::EIO)] {
            let inner = MemSource::default();
            inner.put(b"f", &data(4 * IO_BYTES));
            let failing = FailingSource { inner, after: Arc::new(AtomicU64::new(after)), errno: e };
            let end = copy(engine, &failing, &sink(), 4 * IO_BYTES as u64);
            assert!(matches!(end, Err(CopyError::Source(_))) && errno(&end) == Some(e), "after {after}: {end:?}");
        }
        let inner = MemSource::default();
        inner.put(b"f", &data(4 * IO_BYTES));
        let just_enough = FailingSource { inner, after: Arc::new(AtomicU64::new(4)), errno: libc::EIO };
        assert!(copy(engine, &just_enough, &sink(), 4 * IO_BYTES as u64).is_ok(), "no read more than needed");
    });
}

#[test]
fn an_interrupted_read_is_repeated() {
    each(|engine| {
        let all = data(3 * IO_BYTES);
        let copy_of = all.clone();
        let file = scripted(move |n, buf: &mut [u8], off| {
            if n % 2 == 0 { Err(io::Error::from_raw_os_error(libc::EINTR)) } else { Ok(fill(&copy_of, buf, off)) }
        });
        let to = sink();
        copy(engine, &file, &to, all.len() as u64).expect("copied");
        assert!(written(&to) == all);
    });
}

#[test]
fn a_sink_that_is_full_after_n_writes_fails_the_copy() {
    each(|engine| {
        for (after, e) in [(0, libc::ENOSPC), (2, libc::EDQUOT), (3, libc::EIO)] {
            let (source, to) = (MemSource::default(), FailingSink { after: AtomicU64::new(after), errno: e, ..sink() });
            source.put(b"f", &data(4 * IO_BYTES));
            let end = copy(engine, &source, &to, 4 * IO_BYTES as u64);
            assert!(matches!(end, Err(CopyError::Sink(_))) && errno(&end) == Some(e), "after {after}: {end:?}");
        }
    });
}

#[test]
fn a_file_that_shrank_has_changed() {
    each(|engine| {
        for now in [0, 1, IO_BYTES, 2 * IO_BYTES - 1] {
            let source = MemSource::default();
            source.put(b"f", &data(now));
            let end = copy(engine, &source, &sink(), 2 * IO_BYTES as u64);
            assert!(matches!(end, Err(CopyError::Changed)), "{now} bytes left: {end:?}");
        }
    });
}

#[test]
fn a_copy_of_a_file_that_grew_reads_and_writes_no_byte_more() {
    each(|engine| {
        let (source, to) = (MemSource::default(), sink());
        source.put(b"f", &data(3 * IO_BYTES));
        let done = copy(engine, &source, &to, IO_BYTES as u64 + 1).expect("the identity tells, not the engine");
        assert_eq!(done.bytes, IO_BYTES as u64 + 1);
        assert!(written(&to) == data(3 * IO_BYTES)[..=IO_BYTES]);
    });
}

#[test]
fn a_file_that_is_deleted_under_the_copier_is_the_sources_error() {
    each(|engine| {
        let file =
            scripted(|n, buf: &mut [u8], _| if n == 0 { Ok(buf.len()) } else { Err(io::ErrorKind::NotFound.into()) });
        let end = copy(engine, &file, &sink(), 2 * IO_BYTES as u64);
        assert!(matches!(end, Err(CopyError::Source(e)) if e.kind() == io::ErrorKind::NotFound));
    });
}

#[test]
fn the_stop_flag_ends_a_copy() {
    for make in engines() {
        let stop = Arc::new(AtomicBool::new(true));
        let engine = make(IO_BYTES as u64, Arc::default(), stop.clone());
        let source = MemSource::default();
        source.put(b"f", &data(2 * IO_BYTES));
        assert!(matches!(copy(&*engine, &source, &sink(), 2 * IO_BYTES as u64), Err(CopyError::Stopped)));
        stop.store(false, Ordering::Relaxed);
        // In the middle: no read after the read during which it was set.
        let set = stop.clone();
        let file = scripted(move |n, buf: &mut [u8], _| {
            set.store(n == 1, Ordering::Relaxed);
            Ok(buf.len())
        });
        let end = copy(&*engine, &file, &sink(), 100 * IO_BYTES as u64);
        assert!(matches!(end, Err(CopyError::Stopped)), "{end:?}");
        assert_eq!(file.0.calls.load(Ordering::Relaxed), 2);
    }
}

#[test]
fn the_bandwidth_limit_holds() {
    for make in engines() {
        // 1 MB at 4 MB/s, of which the burst of 100 ms is free.
        let engine = make(IO_BYTES as u64 * 4, Arc::new(Limits::new(Some(4_000_000), None)), Arc::default());
        let source = MemSource::default();
        source.put(b"f", &data(1_000_000));
        let start = Instant::now();
        copy(&*engine, &source, &sink(), 1_000_000).expect("copied");
        assert!(start.elapsed() >= Duration::from_millis(130), "{:?}", start.elapsed());
    }
}

#[test]
fn a_copier_that_the_limits_hold_back_counts_as_in_the_pfs() {
    // Otherwise readers would give up on it and fetch the bytes a second time.
    for make in engines() {
        let engine = make(IO_BYTES as u64, Arc::new(Limits::new(Some(10 * IO_BYTES as u64), None)), Arc::default());
        let (source, seen) = (MemSource::default(), Seen::default());
        source.put(b"f", &data(6 * IO_BYTES));
        std::thread::scope(|s| {
            let copy = s.spawn(|| copy_seen(&*engine, &source, &sink(), 6 * IO_BYTES as u64, &seen).expect("copied"));
            let (mut inside, mut looks) = (0, 0);
            while !copy.is_finished() {
                inside += u32::from(seen.inside.load(Ordering::Relaxed) > 0);
                looks += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(looks > 5 && inside * 10 > looks * 8, "{inside} of {looks}");
        });
    }
}
