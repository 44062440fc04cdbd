use super::*;
use monarch_policies::{Access, FileKey, Served};
use proptest::prelude::*;
use std::io::Cursor;

fn header() -> TraceHeader {
    TraceHeader {
        created_ms: 1_700_000_000_000,
        host: "n1".into(),
        policy: "first_epoch".into(),
        capacity: 1 << 40,
        roots: vec!["/data/a".into(), "/data/b".into()],
    }
}

fn path_of(file: FileKey) -> Vec<u8> {
    format!("train/n{:03}/{}.JPEG", file.0 % 7, file.0).into_bytes()
}

#[derive(Clone, Debug)]
enum Op {
    Add(Access),
    Lost(u64),
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    let served = prop_oneof![Just(Served::Tier), Just(Served::Waited), Just(Served::Pfs)];
    let file = prop_oneof![4 => 0u64..20, 2 => (0u64..3, 0u64..5000).prop_map(|(r, n)| r << 32 | n), 1 => any::<u64>()];
    // (Whole units of time: fractions are cut off.)
    let ticks = prop_oneof![5 => 0u64..100_000, 1 => 0u64..u64::MAX >> 20];
    let access = (file, prop_oneof![Just(9), any::<u64>()], ticks, any::<u16>(), served).prop_map(
        |(f, size, t, stream, served)| {
            Op::Add(Access {
                file: FileKey(f),
                size,
                at: TICK * 1000 * (t >> 32) as u32 + TICK * (t & 0xffff_ffff) as u32,
                stream,
                served,
            })
        },
    );
    prop_oneof![20 => access, 1 => any::<u32>().prop_map(|n| Op::Lost(n.into())), 1 => Just(Op::Flush)]
}

fn write(ops: &[Op], finish: bool) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    let mut w = TraceWriter::create(&path, &header()).unwrap();
    for op in ops {
        match op {
            Op::Add(a) => w.add(a, || path_of(a.file)).unwrap(),
            Op::Lost(n) => w.lost(*n).unwrap(),
            Op::Flush => w.flush().unwrap(),
        }
    }
    if finish {
        w.finish().unwrap();
    } else {
        drop(w);
    }
    std::fs::read(path).unwrap()
}

type Read = (Vec<(Access, TraceFile)>, u64, End);

fn read(bytes: &[u8]) -> Result<Read, TraceError> {
    let mut r = TraceReader::new(Cursor::new(bytes), Path::new("t"))?;
    let mut all = Vec::new();
    while let Some(a) = r.next() {
        all.push((a, r.file(a.file).unwrap().clone()));
    }
    Ok((all, r.lost(), r.end()))
}

/// Accesses with the paths of their files, as they were written.
fn expected(ops: &[Op]) -> Vec<(Access, TraceFile)> {
    let mut files: Vec<FileKey> = Vec::new();
    let adds = ops.iter().filter_map(|o| if let Op::Add(a) = o { Some(*a) } else { None });
    adds.map(|a| {
        let number = files.iter().position(|f| *f == a.file).unwrap_or_else(|| {
            files.push(a.file);
            files.len() - 1
        });
        let file = TraceFile { root: (a.file.0 >> 32) as u32, path: path_of(a.file), size: a.size };
        (Access { file: FileKey(number as u64), ..a }, file)
    })
    .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(ops in proptest::collection::vec(op(), 0..300), finish in any::<bool>()) {
        let (all, lost, end) = read(&write(&ops, finish)).unwrap();
        prop_assert_eq!(all, expected(&ops));
        prop_assert_eq!(lost, ops.iter().map(|o| if let Op::Lost(n) = o { *n } else { 0 }).sum::<u64>());
        prop_assert_eq!(end, if finish { End::Whole } else { End::Unfinished });
    }

    #[test]
    fn cut_anywhere_it_gives_what_came_before(ops in proptest::collection::vec(op(), 0..60)) {
        let bytes = write(&ops, true);
        let whole = expected(&ops);
        for len in 0..bytes.len() {
            let Ok((all, _, end)) = read(&bytes[..len]) else { continue };
            prop_assert!(matches!(end, End::Torn | End::Unfinished), "{:?}", end);
            prop_assert_eq!(&all[..], &whole[..all.len()]);
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(mut bytes in any::<Vec<u8>>(), ops in proptest::collection::vec(op(), 0..40), at in any::<usize>(), with in any::<u8>()) {
        let _ = read(&bytes);
        // With right checksums, too.
        let mut whole = write(&[], false);
        whole.extend(b"MTBK");
        whole.extend((bytes.len() as u32).to_le_bytes());
        whole.extend(xxhash_rust::xxh3::xxh3_64(&bytes).to_le_bytes());
        whole.append(&mut bytes);
        let _ = read(&whole);
        let mut good = write(&ops, true);
        let at = at % good.len();
        good[at] ^= with;
        if let Ok((all, ..)) = read(&good) {
            prop_assert_eq!(&all[..], &expected(&ops)[..all.len()]);
        }
    }

    #[test]
    fn csv_and_back(ops in proptest::collection::vec(op(), 0..100)) {
        let ops: Vec<Op> = ops.into_iter().filter(|o| matches!(o, Op::Add(a) if a.at.as_secs() < 1 << 30)).collect();
        let bytes = write(&ops, true);
        let mut csv = Vec::new();
        export(&mut TraceReader::new(Cursor::new(&bytes), Path::new("t")).unwrap(), u64::MAX, &mut csv).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("o");
        let count = import(&csv[..], Path::new("c"), &out, &TraceHeader::default()).unwrap();
        prop_assert_eq!(count, ops.len() as u64);
        let mut again = Vec::new();
        export(&mut TraceReader::open(&out).unwrap(), u64::MAX, &mut again).unwrap();
        prop_assert_eq!(String::from_utf8(csv), String::from_utf8(again));
    }

    #[test]
    fn no_csv_makes_the_import_panic(lines in "(time_s|stream|path|size|served|[,\"\n0-9.e-]){0,60}") {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("time_s,stream,path,size\n{lines}");
        for text in [lines, text] {
            let _ = import(text.as_bytes(), Path::new("c"), &dir.path().join("o"), &TraceHeader::default());
        }
    }
}

/// A shuffled job on 16 workers.
fn job(files: u64, epochs: u64) -> Vec<Op> {
    let mut state = 7u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let mut ops = Vec::new();
    for epoch in 0..epochs {
        let mut order: Vec<u64> = (0..files).collect();
        for n in (1..files).rev() {
            order.swap(n as usize, below(n + 1) as usize);
        }
        for (n, file) in order.into_iter().enumerate() {
            let at = Duration::from_micros((epoch * files + n as u64) * 300);
            let served = if epoch == 0 { Served::Pfs } else { Served::Tier };
            ops.push(Op::Add(Access { file: FileKey(file), size: 110_000, at, stream: below(16) as u16, served }));
        }
    }
    ops
}

#[test]
fn an_access_takes_less_than_six_bytes() {
    let (one, three) = (write(&job(50_000, 1), true), write(&job(50_000, 3), true));
    let each = (three.len() - one.len()) as f64 / 100_000.0;
    assert!(each < 6.0, "{each}");
}

#[test]
fn statistics_of_a_shuffled_job() {
    let bytes = write(&job(5000, 4), true);
    let mut r = TraceReader::new(Cursor::new(bytes), Path::new("t")).unwrap();
    let s = stats(&mut r);
    assert_eq!((s.files, s.accesses, s.bytes, s.end, s.streams.len()), (5000, 20_000, 550_000_000, "whole", 16));
    assert_eq!(s.epochs.len(), 4);
    assert!(
        s.epochs.iter().all(|e| e.accesses.abs_diff(5000) < 50 && (e.duration_s - 1.5).abs() < 0.1),
        "{:?}",
        s.epochs
    );
    assert!(s.epochs[0].served.pfs == s.epochs[0].accesses && s.epochs[2].served.pfs == 0);
    assert_eq!(s.sizes, [Bin { up_to: 131_072, count: 5000 }]);
    assert_eq!(s.reuse.iter().map(|b| b.count).sum::<u64>(), 15_000);
    // A file that comes after x of an epoch and y of the next one has 1 - x + y files between, less
    // those that are in both: it is there with room c when x was at the end and y at the beginning.
    let ratio: Vec<f64> = s.lru.iter().map(|l| l.hit_ratio).collect();
    assert!(ratio.windows(2).all(|w| w[0] < w[1]) && ratio[0] < 0.03 && ratio[4] > 0.3 && ratio[4] < 0.75, "{ratio:?}");
}

#[test]
fn statistics_of_nothing() {
    let bytes = write(&[], true);
    let s = stats(&mut TraceReader::new(Cursor::new(bytes), Path::new("t")).unwrap());
    assert_eq!((s.files, s.accesses, s.epochs.len()), (0, 0, 0));
}

#[test]
fn mistakes_in_csv_are_told_with_their_line() {
    let dir = tempfile::tempdir().unwrap();
    let told = |text: &str| {
        import(text.as_bytes(), Path::new("x.csv"), &dir.path().join("o"), &TraceHeader::default())
            .unwrap_err()
            .to_string()
    };
    let head = "time_s,stream,path,size,served\n";
    assert_eq!(
        told("a,b\n"),
        "x.csv, line 1: there is no column time_s; begin the file with: time_s,stream,path,size,served"
    );
    assert!(told("").contains("line 1: there is no column time_s"));
    assert!(
        told(&format!("{head}0,0,\"a\nb\",1,pfs\n0,0,a,1k,pfs\n"))
            .contains("line 4: size cannot be \"1k\"; give whole bytes")
    );
    assert!(told(&format!("{head}-1,0,a,1,pfs\n")).contains("line 2: time_s"));
    assert!(told(&format!("{head}1,70000,a,1,pfs\n")).contains("stream cannot be"));
    assert!(told(&format!("{head}1,7,,1,pfs\n")).contains("path cannot be"));
    assert!(told(&format!("{head}1,7,a,1,disk\n")).contains("give one of tier, waited, pfs"));
    assert!(told(&format!("{head}1,7,\"a,1,pfs\n")).contains("line 2: a quote is not closed"));
}

#[test]
fn other_files_are_told() {
    let told = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert!(told(b"").contains("does not begin as one"));
    assert!(told(b"time_s,stream,path,size,served").contains("does not begin as one"));
    assert!(told(b"MONTRACE\x02\0\0\0").contains("another version"));
    let mut bytes = write(&[], true);
    assert!(told(&bytes[..30]).contains("cut short"));
    bytes[25] ^= 1;
    assert!(told(&bytes).contains("header is damaged"));
}

/// Takes some of the blocks only.
#[derive(Debug)]
struct Picky {
    takes: Vec<bool>,
    bytes: std::sync::Arc<std::sync::Mutex<Vec<u8>>>,
}

impl sink::Sink for Picky {
    fn put(&mut self, block: Vec<u8>) -> std::io::Result<bool> {
        let takes = self.takes.pop().unwrap_or(true);
        if takes {
            self.bytes.lock().unwrap().extend(block);
        }
        Ok(takes)
    }

    fn end(&mut self, blocks: Vec<Vec<u8>>, _: Duration) -> std::io::Result<()> {
        self.takes.clear();
        blocks.into_iter().try_for_each(|b| self.put(b).map(drop))
    }

    fn written(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn what_is_left_of_lost_blocks_is_right(
        ops in proptest::collection::vec(op(), 0..300), takes in proptest::collection::vec(any::<bool>(), 0..100),
        full in 1usize..200, renumber in any::<prop::sample::Index>(),
    ) {
        let bytes = std::sync::Arc::new(std::sync::Mutex::new(write(&[], false)));
        let mut w = TraceWriter::new(Path::new("t"), Box::new(Picky { takes, bytes: bytes.clone() })).with_blocks_of(full);
        let (mut added, mut missing) = (0u64, 0u64);
        for (n, op) in ops.iter().enumerate() {
            if n == renumber.index(ops.len()) {
                w.renumber();
            }
            match op {
                // (The time tells which it was.)
                Op::Add(a) => {
                    added += 1;
                    w.add(&Access { at: TICK * n as u32, ..*a }, || path_of(a.file)).unwrap();
                }
                Op::Lost(n) => {
                    missing += n;
                    w.lost(*n).unwrap();
                }
                Op::Flush => w.flush().unwrap(),
            }
        }
        w.end().unwrap();
        let (all, lost, end) = read(&bytes.lock().unwrap()).unwrap();
        prop_assert_eq!(end, End::Whole);
        prop_assert_eq!(all.len() as u64, added - w.dropped());
        prop_assert_eq!(lost, missing + w.dropped());
        let mut last = None;
        for (access, file) in all {
            let n = (access.at.as_micros() / TICK.as_micros()) as usize;
            prop_assert!(last.is_none_or(|l| l < n));
            last = Some(n);
            let Op::Add(was) = &ops[n] else { return Err(TestCaseError::fail("no access")) };
            prop_assert_eq!((&file.path, file.root, file.size), (&path_of(was.file), (was.file.0 >> 32) as u32, was.size));
            prop_assert_eq!((access.stream, access.served, access.size), (was.stream, was.served, was.size));
        }
    }
}

/// A file that waits for somebody to open it, and then to read it.
fn fifo() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    (dir, path)
}

fn behind(path: &Path, limit: Duration) -> std::io::Result<TraceWriter> {
    let empty = write(&[], false);
    let file = path.to_owned();
    let to = sink::Behind::create(move || std::fs::File::create(file), empty, 4, limit)?;
    Ok(TraceWriter::new(path, Box::new(to)))
}

#[test]
fn a_file_that_cannot_be_made_is_not_waited_for_for_ever() {
    let (_dir, path) = fifo();
    let e = behind(&path, Duration::from_millis(50)).unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::TimedOut);
    let e = behind(Path::new("/nowhere/t"), Duration::from_secs(20)).unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn who_adds_never_waits_for_who_writes() {
    let (_dir, path) = fifo();
    let opened = std::thread::spawn({
        let path = path.clone();
        move || std::fs::File::open(path).unwrap()
    });
    let mut w = behind(&path, Duration::from_secs(20)).unwrap();
    let mut reader = opened.join().unwrap();
    // Nobody reads: what the pipe and the queue hold is soon full.
    let ops = job(100_000, 2);
    let start = std::time::Instant::now();
    for op in &ops {
        let Op::Add(a) = op else { continue };
        w.add(a, || path_of(a.file)).unwrap();
    }
    w.flush().unwrap();
    assert!(start.elapsed() < Duration::from_secs(10));
    let dropped = w.dropped();
    assert!(dropped > 50_000, "{dropped}");
    // Now somebody does.
    let all = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
        bytes
    });
    w.end().unwrap();
    let written = w.written();
    drop(w);
    let bytes = all.join().unwrap();
    assert_eq!(bytes.len() as u64, written);
    let (all, lost, end) = read(&bytes).unwrap();
    assert_eq!((all.len() as u64, lost, end), (200_000 - dropped, dropped, End::Whole));
    assert!(all.iter().all(|(_, file)| file.path.ends_with(b".JPEG")));
}

#[test]
fn the_end_is_not_waited_for_for_ever() {
    let (_dir, path) = fifo();
    let opened = std::thread::spawn({
        let path = path.clone();
        move || std::fs::File::open(path).unwrap()
    });
    let mut w = behind(&path, Duration::from_secs(20)).unwrap();
    let reader = opened.join().unwrap();
    for op in job(50_000, 1) {
        let Op::Add(a) = op else { continue };
        w.add(&a, || path_of(a.file)).unwrap();
    }
    let e = w.end_within(Duration::from_millis(50), true).unwrap_err();
    assert!(e.to_string().ends_with("the file system does not answer"), "{e}");
    drop((w, reader));
}

#[test]
fn an_error_of_the_writing_thread_is_told() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut w = TraceWriter::behind(Path::new("/dev/full"), full, &header());
    assert!(w.as_mut().is_err());
    let (_dir, path) = fifo();
    let opened = std::thread::spawn({
        let path = path.clone();
        move || std::fs::File::open(path).unwrap()
    });
    let mut w = behind(&path, Duration::from_secs(20)).unwrap();
    drop(opened.join().unwrap());
    // The reader has gone: EPIPE.
    let Op::Add(a) = job(1, 1)[0].clone() else { return };
    let told = (0..1000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(5));
        w.add(&a, || path_of(a.file)).and_then(|()| w.flush()).err()
    });
    let TraceError::Io { source, .. } = told.unwrap() else { panic!("another error") };
    assert_eq!(source.raw_os_error(), Some(rustix::io::Errno::PIPE.raw_os_error()));
    assert!(w.add(&a, || path_of(a.file)).and_then(|()| w.flush()).is_err());
}
