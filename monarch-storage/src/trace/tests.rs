use super::*;
use monarch_policies::{Access, FileKey, Served};
use proptest::prelude::*;
use std::io::Cursor;

mod csv;
mod reading;
mod sinks;

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
