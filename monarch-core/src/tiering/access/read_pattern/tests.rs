use super::*;
use crate::index::{Built, Tree, build};
use crate::shm::IndexBytes;

/// An index of directories of files, 100 bytes each.
fn tree(dirs: u32, files: u32) -> Built {
    let mut tree = Tree::synthetic(dirs, files);
    (1..=dirs as usize).for_each(|dir| tree.entries_mut(dir).iter_mut().for_each(|r| r.size = 100));
    build(tree, 1, [1; 16])
}

/// What came of a job.
#[derive(Debug, Default)]
struct Done {
    opened: u64,
    /// Files that were prefetched and never opened, and their directories.
    wasted: u64,
    wasted_in: HashSet<usize>,
    /// Opens that found their file prefetched.
    hits: u64,
}

/// A job that opens these files, while prefetch makes up to `pace` copies after each open.
fn job(built: &Built, pattern: &mut ReadPattern, opens: &[u32], pace: usize) -> Done {
    let index = IndexBytes(&built.index).open().expect("index");
    let (mut copies, mut opened, mut done) = (HashSet::new(), HashSet::new(), Done::default());
    // Hits are known a moment later than demands.
    let mut later = Vec::new();
    for (n, &id) in opens.iter().enumerate() {
        opened.insert(id);
        later.push(id);
        if copies.contains(&id) {
            done.hits += 1;
        } else {
            pattern.demanded(&index, id);
        }
        if n % 5 == 4 {
            later.drain(..).for_each(|id| pattern.opened(&index, id));
        }
        for _ in 0..pace {
            let Some(next) = pattern.next(&index, |_, _| true) else { break };
            assert!(copies.insert(next) && !opened.contains(&next), "{next} twice");
        }
    }
    let wasted: Vec<u32> = copies.difference(&opened).copied().collect();
    done.wasted_in = wasted.iter().filter_map(|&id| index.parent_of(id)).collect();
    (done.opened, done.wasted) = (opened.len() as u64, wasted.len() as u64);
    done
}

fn run(built: &Built, opens: &[u32], pace: usize) -> Done {
    job(built, &mut ReadPattern::new(100_000, Prior::Unknown), opens, pace)
}

/// The files of each directory, by number.
fn files(built: &Built) -> Vec<Vec<u32>> {
    let index = IndexBytes(&built.index).open().expect("index");
    let of = |dir: &monarch_abi::index::Dir| {
        index.children(dir, 0).filter(|(_, r)| r.is_file()).map(|(id, _)| id).collect::<Vec<u32>>()
    };
    index.dirs().iter().map(of).filter(|files| !files.is_empty()).collect()
}

/// In an order that chance made, the same each time.
fn shuffled(mut ids: Vec<u32>) -> Vec<u32> {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (1..ids.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ids.swap(at, (seed >> 33) as usize % (at + 1));
    }
    ids
}

/// The files by name.
fn by_name(built: &Built) -> Vec<u32> {
    let index = IndexBytes(&built.index).open().expect("index");
    let mut ids: Vec<u32> = files(built).concat();
    ids.sort_by_key(|&id| {
        let mut path = [0; monarch_abi::PATH_MAX];
        let len = index.path(id, &mut path).expect("a path");
        path[..len].to_vec()
    });
    ids
}

#[test]
fn a_job_that_reads_all_in_order_is_prefetched_for_and_wastes_nothing() {
    let built = tree(20, 100);
    for order in [files(&built).concat(), by_name(&built)] {
        let done = run(&built, &order, 8);
        assert!(done.wasted == 0 && done.hits > 1700, "{done:?}");
    }
    let backwards: Vec<u32> = files(&built).into_iter().rev().flatten().collect();
    let done = run(&built, &backwards, 8);
    assert!(done.wasted == 0 && done.hits > 1000, "{done:?}");
    // Four workers that read a batch of 16 files each, in turns.
    let batches: Vec<u32> = files(&built)
        .concat()
        .chunks(64)
        .flat_map(|four| (0..16).flat_map(move |n| (0..4).filter_map(move |w| four.get(w * 16 + n).copied())))
        .collect();
    let done = run(&built, &batches, 8);
    assert!(done.wasted == 0 && done.hits > 1000, "{done:?}");
}

#[test]
fn what_is_left_before_its_end_wastes_a_twentieth_at_most() {
    let built = tree(20, 100);
    for order in [files(&built).concat(), by_name(&built)] {
        for end in [1, 7, 20, 100, 333, 1000] {
            let done = run(&built, &order[..end], 8);
            assert!(done.wasted * 20 <= done.opened, "{end}: {done:?}");
        }
    }
}

#[test]
fn the_first_files_of_each_directory_are_no_evidence_for_the_others() {
    let built = tree(50, 40);
    for of_each in [1, 2, 5, 10, 20] {
        let part: Vec<u32> = files(&built).iter().flat_map(|files| files[..of_each].to_vec()).collect();
        let done = run(&built, &part, 8);
        assert!(done.wasted * 20 <= done.opened, "{of_each}: {done:?}");
        let mut names = by_name(&built);
        names.retain(|id| part.contains(id));
        let done = run(&built, &names, 8);
        assert!(done.wasted * 20 <= done.opened, "{of_each} by name: {done:?}");
    }
    // Directories backwards, files forwards.
    for of_each in [2, 3, 4, 20] {
        let part: Vec<u32> = files(&built).iter().rev().flat_map(|files| files[..of_each].to_vec()).collect();
        let done = run(&built, &part, 8);
        assert!(done.wasted * 20 <= done.opened, "{of_each} backwards: {done:?}");
    }
    // Every third file, in order.
    let part: Vec<u32> = files(&built).concat().into_iter().step_by(3).collect();
    assert!(run(&built, &part, 8).wasted == 0);
}

#[test]
fn shuffled_files_are_prefetched_at_once_and_all_of_them() {
    let built = tree(2, 1000);
    let done = run(&built, &shuffled(files(&built).concat()), 30);
    assert!(done.wasted == 0 && done.hits > 1850, "{done:?}");
    // Directories of a few files each, of which most have no open for long.
    let built = tree(500, 4);
    let done = run(&built, &shuffled(files(&built).concat()), 30);
    assert!(done.wasted == 0 && done.hits > 1850, "{done:?}");
}

#[test]
fn shuffled_files_of_a_few_directories_are_no_evidence_for_other_directories() {
    let built = tree(100, 100);
    for dirs in [1, 2, 5] {
        let part = shuffled(files(&built)[..dirs].concat());
        let done = run(&built, &part, 30);
        assert!(done.wasted * 20 <= done.opened && done.hits * 10 > done.opened * 8, "{dirs}: {done:?}");
    }
}

#[test]
fn a_random_sample_wastes_a_bounded_amount_once() {
    let built = tree(50, 400);
    let part = shuffled(files(&built).concat())[..100].to_vec();
    let done = run(&built, &part, 1000);
    assert!(done.wasted <= SHUFFLED_FACTOR * done.opened, "{done:?}");
    // Known from the jobs before.
    let done = job(&built, &mut ReadPattern::new(100_000, Prior::Partial), &part, 1000);
    assert_eq!(done.wasted, 0, "{done:?}");
}

#[test]
fn few_opens_are_no_evidence() {
    let built = tree(1, 64);
    let order = files(&built).concat();
    for part in [vec![order[3]], vec![order[40], order[2], order[17]], order[..7].to_vec()] {
        let done = run(&built, &part, 100);
        assert_eq!((done.wasted, done.hits), (0, 0), "{part:?}");
    }
}

#[test]
fn after_a_rewind_what_has_no_copy_is_granted_again() {
    let built = tree(2, 1000);
    let index = IndexBytes(&built.index).open().expect("index");
    let order = shuffled(files(&built).concat());
    let mut pattern = ReadPattern::new(index.len(), Prior::Unknown);
    order[..20].iter().for_each(|&id| pattern.opened(&index, id));
    let mut granted = || std::iter::from_fn(|| pattern.next(&index, |_, _| true)).collect::<HashSet<u32>>();
    let first = granted();
    assert_eq!((first.len(), granted().len()), (320, 0));
    pattern.rewind(&index);
    let again: HashSet<u32> = std::iter::from_fn(|| pattern.next(&index, |id, _| first.contains(&id))).collect();
    assert_eq!(again, first);
    assert!(!pattern.has_more());
}
