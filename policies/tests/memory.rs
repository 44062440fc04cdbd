//! Memory of policies for each file, as their documentation says, counted by the allocator.

use monarch_policies::{Access, Candidate, Event, FileKey, Hints, Policy, RequestSource, Served, TierRoom, by_name};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::{Duration, Instant};

struct Counting;

static BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: the system allocator does all the work; bytes are counted beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as demanded of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as demanded of the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const FILES: u64 = 1_280_000;

/// All files resident and read once, a data set of the size of ImageNet: bytes a file.
fn resident(name: &str) -> f64 {
    let before = BYTES.load(Ordering::Relaxed);
    let mut policy = by_name(name, 1).unwrap();
    let hints = Hints::default();
    policy.event(&Event::Extent { files: FILES, bytes: FILES * 100_000, capacity: FILES * 100_000 }, &hints);
    for file in (0..FILES).map(FileKey) {
        policy.event(&Event::Placed { file, size: 100_000, cost: 102_400, tier: 0 }, &hints);
        policy.event(&access(file), &hints);
    }
    (BYTES.load(Ordering::Relaxed) - before) as f64 / FILES as f64
}

fn access(file: FileKey) -> Event {
    Event::Access(Access { file, size: 100_000, at: Duration::ZERO, stream: 0, served: Served::Tier })
}

fn next(policy: &mut dyn Policy, free: u64, hints: &Hints) -> Option<FileKey> {
    loop {
        let file = policy.next(free, hints);
        if file.is_some() || !policy.unfinished() {
            return file;
        }
    }
}

/// Epochs of `clairvoyant` with room for half of the files: seconds of the policy for each epoch.
fn epochs_ahead() -> Vec<f64> {
    let (mut policy, mut hints) = (by_name("clairvoyant", 1).unwrap(), Hints::default());
    let mut free = FILES / 2;
    let mut seconds = Vec::new();
    for epoch in 0..3u64 {
        let order: Vec<_> = (0..FILES).map(|n| FileKey((n * 7_919 + epoch * 104_729) * 31 % FILES)).collect();
        hints.announce(1, order.clone());
        let start = Instant::now();
        policy.event(&Event::Hinted, &hints);
        for file in order {
            hints.accessed(file);
            policy.event(&access(file), &hints);
            while let Some(file) = next(&mut *policy, free, &hints) {
                let candidate = Candidate { file, size: 1, source: RequestSource::Prefetch };
                let room = TierRoom { cost: 1, free, usable: true };
                match policy.place(&candidate, &[room], &hints) {
                    monarch_policies::Decision::Admit(_) => free -= 1,
                    monarch_policies::Decision::Replace { .. } => {}
                    monarch_policies::Decision::Refuse(_) => continue,
                }
                policy.event(&Event::Placed { file, size: 1, cost: 1, tier: 0 }, &hints);
            }
        }
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds
}

// One test: the allocator counts for all threads.
#[test]
fn a_file_takes_no_more_than_documented() {
    for (name, most) in [
        ("first_epoch", 0.1),
        ("static", 0.1),
        ("ops_per_byte", 140.0),
        ("clairvoyant", 48.0),
        ("lru", 56.0),
        ("lfu", 60.0),
        ("random", 60.0),
    ] {
        let bytes = resident(name);
        println!("{name}: {bytes:.1} bytes a file");
        assert!(bytes <= most, "{name}: {bytes}");
    }
    println!("clairvoyant, {FILES} files: {:.2?} s an epoch", epochs_ahead());
}
