//! Changes made by another client: stale for a while, but never at an open.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use slowfs::{CacheMode, MutationKind, When, mutated};

use crate::common::{Test, World, errno};

const LONG_TTL: Duration = Duration::from_secs(600);
const MODES: [CacheMode; 3] = [CacheMode::Direct, CacheMode::NoKeep, CacheMode::Keep];

/// What a file holds after a mutation of `content`; `None` when it is gone.
fn after(kind: MutationKind, content: &[u8]) -> Option<Vec<u8>> {
    match kind {
        MutationKind::Change | MutationKind::ReplaceSame => Some(mutated(content)),
        MutationKind::Shrink => Some(content[..content.len() / 2].to_vec()),
        MutationKind::Delete => None,
        MutationKind::Replace => Some([&mutated(content)[..], b"slowfs"].concat()),
    }
}

const KINDS: [MutationKind; 5] = [
    MutationKind::Change,
    MutationKind::Shrink,
    MutationKind::Delete,
    MutationKind::Replace,
    MutationKind::ReplaceSame,
];

#[test]
fn a_new_open_sees_every_mutation_in_every_cache_mode() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    for cache in MODES {
        for kind in KINDS {
            let content = world.file("f", 10_000)?;
            let pfs = world.builder().cache(cache).attr_ttl(LONG_TTL).spawn()?;
            let path = pfs.mountpoint().join("f");
            assert!(fs::read(&path)? == content);
            pfs.mutate("f", kind, When::Now)?;
            match after(kind, &content) {
                Some(expected) => assert!(fs::read(&path)? == expected, "{cache} {kind:?}"),
                None => assert_eq!(errno(fs::read(&path)), Some(libc::ENOENT), "{cache}"),
            }
        }
    }
    Ok(())
}

#[test]
fn forced_statx_sees_every_mutation() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    for kind in KINDS {
        let content = world.file("f", 10_000)?;
        let pfs = world.builder().attr_ttl(LONG_TTL).spawn()?;
        let path = pfs.mountpoint().join("f");
        let before = fs::metadata(&path)?;
        pfs.mutate("f", kind, When::Now)?;
        let stale = fs::metadata(&path)?;
        assert_eq!((stale.ino(), stale.size()), (before.ino(), before.size()), "cached");
        let fresh = statx(CWD, &path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
        match after(kind, &content) {
            Some(expected) => {
                let (fresh, real) = (fresh?, fs::metadata(world.src().join("f"))?);
                assert_eq!((fresh.stx_ino, fresh.stx_size), (real.ino(), expected.len() as u64), "{kind:?}");
                assert_eq!(
                    (fresh.stx_ctime.tv_sec, i64::from(fresh.stx_ctime.tv_nsec)),
                    (real.ctime(), real.ctime_nsec())
                );
            }
            None => assert_eq!(fresh.err(), Some(rustix::io::Errno::NOENT)),
        }
    }
    Ok(())
}

#[test]
fn a_reader_keeps_the_inode_it_opened() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    for kind in [MutationKind::Delete, MutationKind::Replace, MutationKind::ReplaceSame] {
        let content = world.file("f", 10_000)?;
        let pfs = world.builder().cache(CacheMode::Direct).attr_ttl(Duration::ZERO).spawn()?;
        let mut file = File::open(pfs.mountpoint().join("f"))?;
        let ino = file.metadata()?.ino();
        pfs.mutate("f", kind, When::Now)?;
        let mut read = Vec::new();
        file.read_to_end(&mut read)?;
        assert!(read == content, "{kind:?}");
        assert_eq!((file.metadata()?.ino(), file.metadata()?.nlink()), (ino, 0));
    }
    Ok(())
}

#[test]
fn mutations_happen_while_a_reader_has_the_file_open() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    let content = world.file("f", 8_000)?;
    let pfs = world.builder().cache(CacheMode::Direct).spawn()?;
    let path = pfs.mountpoint().join("f");
    let mut half = vec![0; 4_000];

    pfs.mutate("f", MutationKind::Change, When::AfterOpen)?;
    assert_eq!(fs::read(world.src().join("f"))?, content, "not before its moment");
    let file = File::open(&path)?;
    file.read_exact_at(&mut half, 0)?;
    let content = mutated(&content);
    assert!(half == content[..4_000], "in place: the reader sees it");

    pfs.mutate("f", MutationKind::Shrink, When::AfterRead(2))?;
    for _ in 0..2 {
        file.read_exact_at(&mut half, 4_000)?;
        assert!(half == content[4_000..]);
    }
    assert_eq!(file.read_at(&mut half, 4_000)?, 0);

    pfs.mutate("f", MutationKind::ReplaceSame, When::AfterRead(1))?;
    file.read_exact_at(&mut half, 0)?;
    file.read_exact_at(&mut half, 0)?;
    assert!(half == content[..4_000], "the descriptor keeps the old inode");
    assert!(fs::read(&path)? == mutated(&half));

    pfs.mutate("f", MutationKind::Delete, When::AfterOpen)?;
    pfs.clear()?;
    assert!(fs::read(&path).is_ok() && path.exists(), "cleared mutations do not happen");
    assert!(pfs.mutate("../f", MutationKind::Delete, When::Now).is_err());
    Ok(())
}

#[test]
fn growth_is_seen_at_the_next_open() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    for cache in MODES {
        world.file("f", 100)?;
        let pfs = world.builder().cache(cache).attr_ttl(LONG_TTL).spawn()?;
        assert_eq!(fs::read(pfs.mountpoint().join("f"))?.len(), 100);
        fs::write(world.src().join("f"), [1; 5_000])?;
        let mut read = Vec::new();
        File::open(pfs.mountpoint().join("f"))?.read_to_end(&mut read)?;
        assert!(read == [1; 5_000], "{cache}: {} bytes", read.len());
    }
    Ok(())
}

/// More files than descriptors: nodes are found again by path, and by a new lookup where the path
/// leads elsewhere by now.
#[test]
fn nodes_are_found_again_after_their_descriptors_were_released() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    let names: Vec<_> = (0..400).map(|i| format!("d{}/f{i}", i % 7)).collect();
    for name in &names {
        world.file(name, 100)?;
    }
    let pfs = world.builder().node_descriptors(50).attr_ttl(LONG_TTL).spawn()?;
    let inodes = || -> std::io::Result<Vec<u64>> {
        names.iter().map(|name| Ok(fs::metadata(pfs.mountpoint().join(name))?.ino())).collect()
    };
    let before = inodes()?;
    let held = fs::read_dir(format!("/proc/{}/fd", pfs.pid()))?.count();
    assert!(held < 120, "{held} descriptors");
    for name in &names {
        assert!(fs::read(pfs.mountpoint().join(name))? == world.file_content(name)?);
    }
    // Behind the mount's back: a directory moves, a file is replaced.
    fs::rename(world.src().join("d0"), world.src().join("moved"))?;
    assert!(fs::read(pfs.mountpoint().join("moved/f7"))? == world.file_content("moved/f7")?);
    pfs.mutate("d1/f1", MutationKind::ReplaceSame, When::Now)?;
    assert!(fs::read(pfs.mountpoint().join("d1/f1"))? == world.file_content("d1/f1")?);
    fs::rename(pfs.mountpoint().join("moved"), pfs.mountpoint().join("d0"))?;
    let after = inodes()?;
    assert_eq!(before.iter().zip(&after).filter(|(a, b)| a != b).count(), 1, "the one replaced");
    Ok(())
}
