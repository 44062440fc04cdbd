//! A small made-up tree with one of everything that an index can hold, for tests and fuzz targets.

use super::read_dir::DirScan;
use super::scan::Tree;
use monarch_abi::index::{DIR_INCOMPLETE, OWNER_KERNEL, Record};

/// What an entry of the sample is.
enum Sample {
    /// The next directory in the order of this table.
    Dir,
    /// A directory whose listing is not held.
    Unread,
    /// A file: inode number and size. Equal inode numbers are hard links.
    File(u64, u64),
    /// A file whose owner only the kernel knows.
    Foreign(u64),
    /// A symbolic link.
    Link(&'static str),
}

use Sample::{Dir, File, Foreign, Link, Unread};

const MIB: u64 = 1 << 20;

/// Number of the directory that holds an entry, its name, and what it is.
const ENTRIES: [(usize, &str, Sample); 30] = [
    (0, "train", Dir),
    (0, "val", Dir),
    (0, "secret", Unread),
    (0, "README", File(100, 1234)),
    (0, "latest", Link("train/n01")),
    (0, "loop", Link("loop")),
    (0, "up", Link("../outside")),
    (0, "absolute", Link("/pfs/data/val/0.JPEG")),
    (0, "by-alias", Link("/alias/0.JPEG")),
    (1, "n01", Dir),
    (1, "n02", Dir),
    (1, "again", Link("../val/../train/n02/")),
    (2, "0.JPEG", File(200, 110_000)),
    (2, "1.JPEG", File(201, 0)),
    (2, "same", File(200, 110_000)),
    (4, "a.JPEG", File(300, 110_000)),
    (4, "b.JPEG", File(301, 110_001)),
    (4, "c.JPEG", Foreign(302)),
    (4, "a-name-of-which-the-longest-of-all-file-systems-would-say-that-it-is-quite-long.JPEG", File(303, 7)),
    (5, "shard-0.tar", File(400, 40 * MIB + 17)),
    (5, "shard-1.tar", File(401, 400 * MIB)),
    (5, "shard-2.tar", File(401, 400 * MIB)),
    (5, "deep", Dir),
    (5, "link-to-file", Link("shard-0.tar")),
    (6, "deeper", Dir),
    (6, "x", File(500, 1)),
    (7, "deepest", Dir),
    (7, "chain", Link("../x")),
    (8, "y", File(501, 4096)),
    (8, "chain", Link("../chain")),
];

/// A made-up tree of 31 entries with one of everything: nested directories, one of them without
/// a listing, hard and symbolic links, loops, large files, birth times, two owners. It is
/// the same each time.
#[must_use]
pub fn sample_tree() -> Tree {
    const TIME: i64 = 1_700_000_000_000_000_000;
    let base = |mode: u16, ino: u64| Record {
        ino,
        mode,
        nlink: 1,
        mtime_ns: TIME,
        ctime_ns: TIME + 1,
        atime_ns: TIME + 2,
        ..Record::default()
    };
    let mut dirs: Vec<DirScan> = vec![DirScan { parent_ino: 1, ..DirScan::default() }];
    for (holder, name, what) in &ENTRIES {
        let number = dirs.len() as u32;
        let mut target = None;
        let mut record = match what {
            Dir | Unread => Record { aux: number, ..base(0o040_755, 10 + u64::from(number)) },
            File(ino, size) => {
                let same = |e: &&(usize, &str, Sample)| matches!(e.2, File(other, _) if other == *ino);
                let nlink = ENTRIES.iter().filter(same).count() as u16;
                Record { size: *size, blocks: size.div_ceil(512) as u32, nlink, ..base(0o100_644, *ino) }
            }
            Foreign(ino) => Record { size: 5, owner: OWNER_KERNEL, ..base(0o100_600, *ino) },
            Link(to) => {
                target = Some(*to);
                Record { size: to.len() as u64, owner: 1, ..base(0o120_777, 1000 + to.len() as u64) }
            }
        };
        if matches!(what, Dir | Unread) {
            let flags = if matches!(what, Unread) { DIR_INCOMPLETE } else { 0 };
            dirs.push(DirScan { flags, ..DirScan::default() });
        }
        let Some(dir) = dirs.get_mut(*holder) else { continue };
        if let Some(to) = target {
            record.aux = dir.links.len() as u32;
            dir.links.extend_from_slice(&(to.len() as u32).to_le_bytes());
            dir.links.extend_from_slice(to.as_bytes());
        }
        record.name_lo = dir.names.len() as u32;
        record.name_len = name.len() as u8;
        dir.names.extend_from_slice(name.as_bytes());
        dir.entries.push(record);
        dir.btimes.push(TIME - 5);
    }
    Tree {
        root: base(0o040_755, 2),
        root_btime: TIME - 5,
        dirs,
        owners: vec![0, 1000 << 32 | 1000],
        root_id: 7,
        root_dev: 1,
        began_ns: 1,
        incomplete: true,
        cut: false,
    }
}
