//! Size and speed of the namespace index at a given number of paths.
//!
//!     cargo bench -p monarch-storage --bench index -- [--saved DIR [--cold]] 1280000 10000000
//!
//! `--file FILE` measures with a saved index, `--save FILE ROOT PATHS` makes one of a root that is
//! not there, to start jobs with.
//!
//! `--distributed NODES PATHS` measures what one of several nodes holds of directories that no
//! index holds (`index.distributed`): private memory, time to make a message of a directory and to
//! take it in, and to find an entry.
//!
//! Prints for each number: time to build, memory at its peak beside the tree's, bytes per path
//! without its name, time to save, time until a saved index is usable (read, checksum,
//! shared-memory files filled and mapped) and what an agent looks for in it was found (`looked
//! over`), in the order of three rounds, nanoseconds per lookup in shuffled order (hash, bucket,
//! record), and to list a directory. Everything lies in /dev/shm unless the saved index has a
//! directory of its own; with `--cold` it is read from the disk there, not from the page cache, and
//! removed at the end. Before each round its memory is taken and freed: a virtual machine that has
//! given it back to its host gets it at 1.5 s for each GiB.
#![allow(clippy::print_stdout, reason = "a benchmark")]

use monarch_abi::segment::Segment;
use monarch_storage::index::{self, Directory, Tree};
use monarch_storage::shm;
use rustix::time::ClockId;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Random numbers for the order (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Private memory of this process at its highest since the last call, bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) << 10
    };
    field("VmHWM:").saturating_sub(field("RssShmem:"))
}

/// Processor time of this thread, or process: other programs may run beside.
fn processor_time(of: ClockId) -> Duration {
    let t = rustix::time::clock_gettime(of);
    Duration::new(t.tv_sec.unsigned_abs(), t.tv_nsec as u32)
}

/// Makes a segment of a saved index, as an agent does.
fn load(saved: &Path, dir: &Path) -> std::io::Result<(Segment<'static>, u64, u64)> {
    let held = std::sync::Arc::new(monarch_storage::held_dir::HeldDir::at(dir)?);
    let index::Loaded { file, index, table } = index::load_within(saved, &held).map_err(std::io::Error::other)?;
    let chunking = shm::Chunking { threshold: 16 << 20, size: 4 << 20 };
    let checks = shm::Checks { loaded: true, ..shm::Checks::default() };
    shm::segment_with(&held, (file, &index), shm::Buckets::File(table), STATE, chunking, checks)
}

/// Looks for all that an agent looks for in a new index.
fn look_over(segment: &Segment<'_>) -> std::io::Result<()> {
    let names = monarch_config::AbsentNames {
        rule: monarch_config::AbsentRule::Auto,
        every: Duration::from_secs(5),
        min_age: Duration::from_secs(5),
    };
    let words = index::decider_words(&segment.index, &names, true);
    let links = index::LinksOut::of(&segment.index, Path::new("/no/such/root"), &[]);
    let (released, software) = (index::Released::of(&segment.index), index::Software::of(&segment.index));
    if words.is_empty() || links.is_some() || software.files > 0 || released.files > u64::from(u32::MAX) {
        return Err(std::io::Error::other("this is not the synthetic tree"));
    }
    Ok(())
}

/// Loads an index in this process, and prints seconds until it is usable, was looked over, and of
/// processor time.
fn load_once(saved: &Path, dir: &Path) -> std::io::Result<()> {
    let start = Instant::now();
    let (segment, ..) = load(saved, dir)?;
    let usable = start.elapsed();
    look_over(&segment)?;
    let ready = start.elapsed();
    let processor = processor_time(ClockId::ProcessCPUTime);
    println!("{:.2} {:.2} {:.2}", usable.as_secs_f64(), ready.as_secs_f64(), processor.as_secs_f64());
    // (The next round needs their memory.)
    let (index, state) = shm::segment_names(segment.index.header.uuid, STATE);
    std::fs::remove_file(dir.join(index)).and_then(|()| std::fs::remove_file(dir.join(state)))
}

fn measure(paths: u32, dir: &Path, saved: &Path, is_cold: bool) -> std::io::Result<()> {
    let tree = Tree::synthetic(paths / PER_DIR, PER_DIR);
    let tree_peak = peak();
    let start = Instant::now();
    let built = index::try_build(tree, 42, [7; 16]).map_err(std::io::Error::other)?;
    let build = start.elapsed();
    let peak = peak();
    let saved_file = saved.join("saved.idx");
    let start = Instant::now();
    index::save(&built, &saved_file).map_err(std::io::Error::other)?;
    let save = start.elapsed();
    drop(built);
    print!(
        "built in {:.2} s (private memory {:.2} GiB at its peak, the tree {:.2}), saved in {:.2} s; ",
        build.as_secs_f64(),
        peak as f64 / GIB,
        tree_peak as f64 / GIB,
        save.as_secs_f64()
    );
    measure_saved(&saved_file, dir, is_cold)
}

/// Takes memory, in huge pages as far as there are some, and frees it.
fn touch(bytes: usize) -> std::io::Result<()> {
    let mut room = memmap2::MmapMut::map_anon(bytes)?;
    let _ = room.advise(memmap2::Advice::HugePage);
    room.chunks_mut(4096).for_each(|page| page[0] = 1);
    Ok(())
}

fn measure_saved(saved_file: &Path, dir: &Path, is_cold: bool) -> std::io::Result<()> {
    let (mut usable, mut rounds) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        if is_cold {
            let file = std::fs::File::open(saved_file)?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        touch(std::fs::metadata(saved_file)?.len() as usize)?;
        // In a process of its own, as mappings of segments are kept for the life of a process.
        let me = std::env::current_exe()?;
        let done = std::process::Command::new(me).arg("--load").arg(saved_file).arg(dir).output()?;
        let said = String::from_utf8_lossy(&done.stdout).trim().to_owned();
        let seconds = said.split(' ').next().map_or(Ok(0.0), str::parse::<f64>);
        usable.push(seconds.map_err(|_| std::io::Error::other(String::from_utf8_lossy(&done.stderr).into_owned()))?);
        rounds.push(said);
    }
    usable.sort_by(f64::total_cmp);
    let (segment, index_len, state_len) = load(saved_file, dir)?;
    let header = *segment.index.header;
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
    let look_up = || {
        let mut rounds = Vec::new();
        for _ in 0..5 {
            let start = processor_time(ClockId::ThreadCPUTime);
            let (mut from, mut sum) = (0, 0u64);
            for &end in &ends {
                sum += segment.lookup(&arena[from..end]).map_or(0, |e| e.record.size);
                from = end;
            }
            rounds.push((processor_time(ClockId::ThreadCPUTime) - start).as_nanos() as f64 / ends.len() as f64);
            std::hint::black_box(sum);
        }
        rounds.sort_by(f64::total_cmp);
        (rounds[2], rounds[0])
    };
    let lookup = look_up();
    let start = Instant::now();
    let huge = shm::use_huge_pages(&segment) as f64 / (index_len + state_len) as f64;
    let (collapse, in_huge) = (start.elapsed(), look_up());
    let start = Instant::now();
    let dirs = segment.index.dirs().iter().skip(1).step_by(97).take(1000);
    let mut listed = 0;
    for d in dirs.clone() {
        let children = segment.index.children(d, 0).filter_map(|(_, r)| segment.index.name(r));
        listed += children.map(<[u8]>::len).sum::<usize>();
    }
    let list = start.elapsed().as_secs_f64() / dirs.count().max(1) as f64;
    std::hint::black_box(listed);
    println!(
        "{} paths: {bytes:.1} B + name each, saved index of {:.2} GiB usable in {:.2} s (usable, looked over, processor \
         time: {}), lookup shuffled {:.0} ns (at best {:.0}), with {:.0} % in huge pages {:.0} (at best {:.0}; made in {:.1} s), {} names listed in \
         {:.1} us",
        header.entries,
        std::fs::metadata(saved_file)?.len() as f64 / GIB,
        usable[1],
        rounds.join("; "),
        lookup.0,
        lookup.1,
        huge * 100.0,
        in_huge.0,
        in_huge.1,
        collapse.as_secs_f64(),
        PER_DIR,
        list * 1e6
    );
    Ok(())
}

/// Name of the state file of a segment.
const STATE: [u8; 16] = [1; 16];
/// What one of `nodes` nodes holds of `paths` names in directories that no index holds.
fn measure_distributed(nodes: u32, paths: u32) {
    let dirs = paths / PER_DIR / nodes;
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        status.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
    };
    let before = resident();
    let start = processor_time(ClockId::ThreadCPUTime);
    let held: Vec<Directory> = (0..dirs).map(|n| Directory::synthetic(n, PER_DIR)).collect();
    let made = processor_time(ClockId::ThreadCPUTime) - start;
    let (memory, names) = (resident() - before, u64::from(dirs) * u64::from(PER_DIR));
    let counted: usize = held.iter().map(Directory::held_bytes).sum();
    let few = &held[..held.len().min(1000)];
    let start = processor_time(ClockId::ThreadCPUTime);
    let messages: Vec<Vec<u8>> = few.iter().map(|dir| dir.encode(|_| false)).collect();
    let encode = (processor_time(ClockId::ThreadCPUTime) - start) / few.len().max(1) as u32;
    let start = processor_time(ClockId::ThreadCPUTime);
    let taken: Vec<Directory> = messages.iter().filter_map(|message| Directory::decode(message)).collect();
    let decode = (processor_time(ClockId::ThreadCPUTime) - start) / few.len().max(1) as u32;
    let start = processor_time(ClockId::ThreadCPUTime);
    let mut found = 0;
    for (n, dir) in (0..).zip(&taken) {
        found += u32::from(dir.attributes(format!("n{n:08}_{:08}", n % PER_DIR).as_bytes()).is_some());
    }
    let find = (processor_time(ClockId::ThreadCPUTime) - start) / found.max(1);
    println!(
        "{paths} paths on {nodes} nodes: a node holds {dirs} directories of {PER_DIR} in {:.3} GiB ({:.1} B each with names of 18, \
         counted as {:.1}), made in {:.2} s; message of a directory {} B, made in {encode:.0?}, taken in in {decode:.0?}; an entry \
         found in {find:.0?}",
        memory as f64 / GIB,
        memory as f64 / names.max(1) as f64,
        counted as f64 / names.max(1) as f64,
        made.as_secs_f64(),
        messages.first().map_or(0, Vec::len),
    );
}

/// Files of a directory.
const PER_DIR: u32 = 1280;
const GIB: f64 = (1u64 << 30) as f64;

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let (mut counts, mut saved, mut is_cold) = (Vec::new(), None, false);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--saved" => saved = args.next().map(PathBuf::from),
            "--cold" => is_cold = true,
            "--file" => {
                let Some(file) = args.next().map(PathBuf::from) else { return Ok(()) };
                return in_memory(|dir| measure_saved(&file, dir, is_cold));
            }
            "--save" => {
                let (Some(file), Some(root), Some(Ok(paths))) =
                    (args.next(), args.next(), args.next().map(|n| n.parse::<u32>()))
                else {
                    return Ok(());
                };
                let tree = Tree::synthetic(paths / PER_DIR, PER_DIR).of_root(Path::new(&root));
                let built = index::try_build(tree, 42, [7; 16]).map_err(std::io::Error::other)?;
                return index::save(&built, Path::new(&file)).map_err(std::io::Error::other);
            }
            "--distributed" => {
                let numbers = (args.next().map(|n| n.parse()), args.next().map(|n| n.parse()));
                if let (Some(Ok(nodes)), Some(Ok(paths))) = numbers {
                    measure_distributed(nodes, paths);
                }
                return Ok(());
            }
            "--load" => {
                let (Some(saved), Some(dir)) = (args.next(), args.next()) else { return Ok(()) };
                return load_once(Path::new(&saved), Path::new(&dir));
            }
            // (cargo adds words of its own.)
            number => counts.extend(number.parse::<u32>()),
        }
    }
    for paths in if counts.is_empty() { vec![1_280_000] } else { counts } {
        in_memory(|dir| {
            let beside = saved.as_ref().map_or(dir, PathBuf::as_path);
            let done = measure(paths, dir, beside, is_cold);
            let _ = std::fs::remove_file(beside.join("saved.idx"));
            done
        })?;
    }
    Ok(())
}

/// Calls `measure` with a new directory in shared memory, and removes it.
fn in_memory(measure: impl FnOnce(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    let dir = PathBuf::from(format!("/dev/shm/monarch-bench-index-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let done = measure(&dir);
    let _ = std::fs::remove_dir_all(&dir);
    done
}
