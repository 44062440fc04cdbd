//! Traces, as `monarch trace` and `monarch simulate` read them, and CSV files that become traces.

use super::input::Input;
use super::sample::scratch;
use monarch_core::trace::{TraceHeader, TraceReader, VERSION, export, import, stats};
use monarch_policies::sim::recorded_workload;
use monarch_policies::{Access, Epochs};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

thread_local! {
    static DIR: tempfile::TempDir = scratch();
}

/// Reads, counts, exports and simulates a trace; imports CSV.
pub(crate) fn trace(bytes: &[u8]) {
    let mut input = Input(bytes);
    match input.u8() & 3 {
        0 => table(input.0),
        1 => recorded(input.0),
        _ => recorded(&sealed(&mut input)),
    }
}

/// A trace with the right version and checksums.
fn sealed(input: &mut Input<'_>) -> Vec<u8> {
    let seal = |out: &mut Vec<u8>, part: &[u8]| {
        out.extend((part.len() as u32).to_le_bytes());
        out.extend(xxh3_64(part).to_le_bytes());
        out.extend(part);
    };
    let mut out = b"MONTRACE".to_vec();
    out.extend(VERSION.to_le_bytes());
    seal(&mut out, input.part());
    while !input.is_empty() {
        out.extend(if input.u8() == u8::MAX { b"MTND" } else { b"MTBK" });
        seal(&mut out, input.part());
    }
    out
}

fn recorded(bytes: &[u8]) {
    let path = Path::new("fuzzed");
    let open = || TraceReader::new(bytes, path);
    let Ok(mut reader) = open() else { return };
    let counts = stats(&mut reader);
    let _ = (counts.lru.len(), serde_json::to_string(&counts).expect("counts are JSON"));
    let mut csv = Vec::new();
    if let Ok(mut reader) = open() {
        export(&mut reader, 10_000, &mut csv).expect("memory");
        for file in reader.files().iter().take(100) {
            let _ = reader.path(file);
        }
    }
    if let Ok(mut reader) = open() {
        let accesses: Vec<Access> = reader.by_ref().take(10_000).collect();
        let (mut found, mut begins) = (Epochs::default(), vec![0]);
        for (at, access) in accesses.iter().enumerate() {
            if matches!(found.access(access.file), monarch_policies::EpochEvent::Begun(_)) {
                begins.push(at);
            }
        }
        let work = recorded_workload(&accesses, &begins);
        let _ = (work.files(), work.bytes(), work.smallest(), work.one_size(), work.accesses(3));
    }
    table(&csv);
}

fn table(csv: &[u8]) {
    DIR.with(|dir| {
        let output = dir.path().join("trace");
        let Ok(count) = import(csv, Path::new("fuzzed.csv"), &output, &TraceHeader::default()) else { return };
        let mut reader = TraceReader::open(&output).expect("a trace that was just written");
        assert_eq!(reader.by_ref().count() as u64, count);
        assert_eq!(reader.end(), monarch_core::trace::End::Whole);
    });
}
