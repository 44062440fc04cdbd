//! Lost blocks, and files that a thread writes.

use super::*;

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

/// A file that waits until a reader opens it, and then until the reader reads.
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
fn an_access_is_added_without_a_wait_for_the_writing_thread() {
    let (_dir, path) = fifo();
    let opened = std::thread::spawn({
        let path = path.clone();
        move || std::fs::File::open(path).unwrap()
    });
    let mut w = behind(&path, Duration::from_secs(20)).unwrap();
    let mut reader = opened.join().unwrap();
    // There is no reader: the pipe and the queue are full soon.
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
    // Now there is a reader.
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
fn an_error_of_the_writing_thread_is_returned() {
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
    // The reader has closed the pipe: EPIPE.
    let Op::Add(a) = job(1, 1)[0].clone() else { return };
    let error = (0..1000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(5));
        w.add(&a, || path_of(a.file)).and_then(|()| w.flush()).err()
    });
    let TraceError::Io { source, .. } = error.unwrap() else { panic!("another error") };
    assert_eq!(source.raw_os_error(), Some(rustix::io::Errno::PIPE.raw_os_error()));
    assert!(w.add(&a, || path_of(a.file)).and_then(|()| w.flush()).is_err());
}
