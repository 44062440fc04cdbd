//! Size and speed of the namespace index at a given number of paths.
//!
//!     cargo bench -p monarch-storage --bench index -- 1280000 10000000
//!
//! Prints for each number: time to build, bytes per path without its name, time to save, time until
//! a saved index is usable (read, checksum, shared-memory files written and mapped), nanoseconds
//! per lookup in shuffled order (hash, bucket, record).
#![allow(clippy::print_stdout, reason = "a benchmark")]

use monarch_storage::index::{self, Tree};
use monarch_storage::shm;
use std::path::PathBuf;
use std::time::Instant;

/// Random numbers for the order (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn measure(paths: u32, dir: &std::path::Path) -> std::io::Result<()> {
    let per_dir = 1280;
    let start = Instant::now();
    let built = index::build(Tree::synthetic(paths / per_dir, per_dir), 42, [7; 16]);
    let build = start.elapsed();
    let header = built.header();
    let saved_file = dir.join("saved.idx");
    let start = Instant::now();
    index::save(&built, &saved_file).map_err(std::io::Error::other)?;
    let save = start.elapsed();
    drop(built);
    let held = std::sync::Arc::new(monarch_storage::held_dir::HeldDir::at(dir)?);
    let mut usable = Vec::new();
    let mut segment = None;
    for turn in 0..3u8 {
        let start = Instant::now();
        let index::Loaded { file, index, buckets } =
            index::load_within(&saved_file, &held).map_err(std::io::Error::other)?;
        let chunking = shm::Chunking { threshold: 16 << 20, size: 4 << 20 };
        let checks = shm::Checks { loaded: true, ..shm::Checks::default() };
        let made = shm::segment_with(&held, (file, &index), &buckets, [turn; 16], chunking, checks)?;
        usable.push(start.elapsed());
        segment = Some(made);
    }
    usable.sort();
    let Some((segment, index_len, state_len)) = segment else { return Ok(()) };
    let names = header.names_len;
    let bytes = (index_len + state_len - names) as f64 / f64::from(header.entries);
    // Paths in shuffled order, kept in one arena so that their own cache misses stay sequential.
    let mut order: Vec<u32> = (0..header.entries).collect();
    let mut state = 1;
    for i in (1..order.len()).rev() {
        order.swap(i, (next(&mut state) % (i as u64 + 1)) as usize);
    }
    let mut arena = Vec::new();
    let mut ends = Vec::new();
    let mut buf = [0u8; monarch_abi::PATH_MAX];
    for id in order.iter().take(2_000_000) {
        let len = segment.index.path(*id, &mut buf).unwrap_or(0);
        arena.extend_from_slice(&buf[..len]);
        ends.push(arena.len());
    }
    let mut rounds = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        let (mut from, mut sum) = (0, 0u64);
        for &end in &ends {
            sum += segment.lookup(&arena[from..end]).map_or(0, |e| e.record.size);
            from = end;
        }
        rounds.push(start.elapsed().as_nanos() as f64 / ends.len() as f64);
        std::hint::black_box(sum);
    }
    rounds.sort_by(f64::total_cmp);
    println!(
        "{:>9} paths: build {:.2} s, {:.1} B + name each, save {:.2} s, saved index usable in {:.3} s (median of 3), lookup shuffled {:.0} ns",
        header.entries,
        build.as_secs_f64(),
        bytes,
        save.as_secs_f64(),
        usable[1].as_secs_f64(),
        rounds[2]
    );
    Ok(())
}

fn main() -> std::io::Result<()> {
    let counts: Vec<u32> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    for paths in if counts.is_empty() { vec![1_280_000] } else { counts } {
        let dir = PathBuf::from(format!("/dev/shm/monarch-bench-index-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let done = measure(paths, &dir);
        std::fs::remove_dir_all(&dir)?;
        done?;
    }
    Ok(())
}
