//! Takes over what an earlier agent left in a tier: charges all of it, and keeps what can be
//! trusted.
//!
//! A copy is kept if its name, size and stamp belong together and the log knows it. A copy of
//! another boot of the machine that had not reached the disk may hold any bytes, so it has to be
//! verified before it is used.

use super::codec::Codec;
use super::found_copy::Copy;
use super::fs::{OLD_TRASH, TRASH};
use super::log_reader::{self, Logged};
use super::log_record;
use super::packed_copies::{self, PackedCopies};
use super::space::{Space, charge_of};
use super::tier_log::TierLog;
use super::trash::Trash;
use monarch_abi::hash::{CopyName, Stamp};
use rustix::fs::{RenameFlags, Stat};
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// The contents of a directory of copies.
#[derive(Debug, Default)]
struct Listed {
    copies: Vec<Found>,
    /// What is no copy.
    strange: Vec<Strange>,
}

impl Listed {
    /// Keeps one packed copy of a name: a publication replaces a copy of the other codec, but a
    /// user, or another version of this program, may have put both there.
    fn put_second_packed_copies_aside(&mut self) {
        let zstd = |l: &Found| l.codec == Some(Codec::Zstd);
        if !self.copies.iter().any(zstd) {
            return;
        }
        let lz4: HashSet<CopyName> =
            self.copies.iter().filter(|l| l.codec == Some(Codec::Lz4)).map(|l| l.name).collect();
        let second = self.copies.extract_if(.., |l| zstd(l) && lz4.contains(&l.name));
        self.strange.extend(second.map(|l| Strange { path: l.path(), charged: l.charged, is_file: true }));
    }
}

/// What is no copy, and the bytes charged for it.
#[derive(Debug)]
struct Strange {
    path: String,
    charged: u64,
    is_file: bool,
}

/// A file whose name and stamp are those of a copy.
#[derive(Debug)]
struct Found {
    name: CopyName,
    stamp: Stamp,
    size: u64,
    charged: u64,
    /// That of a packed copy.
    codec: Option<Codec>,
    /// When it got its name, in seconds.
    changed: u64,
}

/// Listed directories that wait to be accounted for, at most.
const LISTED_AHEAD: usize = 64;
/// Threads that list the directories of copies.
const LISTER_THREADS: usize = 4;

/// Takes over a tier: what is handed to it belongs to the tier.
pub(super) struct Recovery<'a> {
    pub(super) space: &'a Space,
    pub(super) trash: &'a Trash,
    pub(super) log: &'a TierLog,
    pub(super) packed: &'a PackedCopies,
}

impl Recovery<'_> {
    /// Accounts for everything on disk: removes unfinished files, tries again to remove evicted
    /// ones, charges copies and gives them to `found`.
    ///
    /// # Errors
    /// What the kernel said. The tier must not be used then: not all that lies there is charged.
    pub(super) fn run(&self, mut found: impl FnMut(Copy)) -> io::Result<()> {
        for sub in ["tmp", "part"] {
            for (file, st) in self.space.list(sub)? {
                let path = format!("{sub}/{file}");
                self.space.ledger.charge(charge_of(&st), 0);
                self.discard(&path, charge_of(&st), is_file(&st));
            }
        }
        self.empty_old_trash()?;
        for (file, st) in self.space.list(TRASH)? {
            self.trash.charge_and_remove_later(format!("{TRASH}/{file}"), charge_of(&st));
        }
        let boot = boot_id();
        let (mut kept, mut unknown) = (0, 0);
        // The log is read while the directories are being listed.
        let read = self.each_directory(
            || log_reader::read(&self.space.fs, boot),
            |read, listed| {
                // All of it is charged before any of it is removed.
                let charges = listed.copies.iter().map(|l| l.charged).chain(listed.strange.iter().map(|s| s.charged));
                self.space.ledger.charge(charges.sum(), (listed.copies.len() + listed.strange.len()) as u64);
                for l in listed.copies {
                    let cost = self.space.ledger.cost(l.size);
                    let packed = l.codec.is_some();
                    let fits = |logged: &&mut Logged| logged.packed == packed && (packed || logged.size == l.size);
                    match read.copies.get_mut(l.name).filter(fits) {
                        Some(logged) => {
                            let safe = logged.found(l.changed);
                            kept += 1;
                            if let Some(codec) = l.codec {
                                self.packed.note(codec, 1, logged.size, l.size);
                            } else if l.charged != cost {
                                self.trash.note_charge(l.name, cost, l.charged);
                            }
                            // A packed copy is compared with its checksum whenever it is decoded.
                            let check = (!safe && !packed).then_some(logged.sum);
                            let (name, size, charged) = (l.name, logged.size, l.charged);
                            found(Copy { name, size, charged, stamp: l.stamp, check, packed });
                        }
                        None => {
                            unknown += 1;
                            self.space.ledger.release(0, 1);
                            self.discard(&l.path(), l.charged, true);
                        }
                    }
                }
                for s in listed.strange {
                    unknown += 1;
                    self.space.ledger.release(0, 1);
                    self.discard(&s.path, s.charged, s.is_file);
                }
            },
        )?;
        if unknown > 0 {
            tracing::info!(tier = self.space.name, copies = unknown, "copies that the log does not know were removed");
        }
        // Left by an older version of this program.
        self.space.unlink("boot");
        // Left by an agent that ended while it compacted its log.
        self.space.unlink(log_record::NEW);
        self.log.resume(boot, read, kept);
        self.trash.sweep();
        Ok(())
    }

    /// Moves the files in the trash of versions before 0.2.0 to that of this version, and removes
    /// the old directory. Files that the kernel does not move are charged, and removed where they
    /// are.
    ///
    /// # Errors
    /// What the kernel said.
    fn empty_old_trash(&self) -> io::Result<()> {
        let listed = match self.space.list(OLD_TRASH) {
            // A tier without one, or a file that has its name.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP)) => return Ok(()),
            listed => listed?,
        };
        for (file, st) in listed {
            let (from, to) = (format!("{OLD_TRASH}/{file}"), format!("{TRASH}/{file}"));
            if self.space.fs.rename_with(&from, &to, RenameFlags::NOREPLACE).is_err() {
                self.trash.charge_and_remove_later(from, charge_of(&st));
            }
        }
        let blocks = self.space.fs.stat(OLD_TRASH).map_or(0, |st| st.st_blocks as u64 * 512);
        if self.space.fs.remove_dir(OLD_TRASH).is_ok() {
            self.space.ledger.release(blocks, 0);
        }
        Ok(())
    }

    /// Removes what is charged and of no use. A file goes only when no process has it open: jobs
    /// outlive agents, and transient copies (decoded, yet to be packed, of other nodes) are in no
    /// log.
    fn discard(&self, path: &str, charged: u64, is_file: bool) {
        if is_file {
            self.trash.put(path, charged);
        } else if self.space.unlink(path) {
            self.space.ledger.release(charged, 0);
        }
    }

    /// Lists the directories of copies with several threads while `prepare` runs, then calls `each`
    /// with one after the other.
    ///
    /// # Errors
    /// What `prepare`, or the kernel, said.
    fn each_directory<T>(
        &self,
        prepare: impl FnOnce() -> io::Result<T>,
        mut each: impl FnMut(&mut T, Listed),
    ) -> io::Result<T> {
        let next = AtomicUsize::new(0);
        std::thread::scope(|s| {
            let (send, listed) = sync_channel(LISTED_AHEAD);
            for _ in 0..LISTER_THREADS {
                let (send, next) = (send.clone(), &next);
                s.spawn(move || {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        // The receiver is gone once listing has failed.
                        if i >= 256 || send.send(self.list_copies(i)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(send);
            let mut prepared = prepare()?;
            for directory in listed {
                each(&mut prepared, directory?);
            }
            Ok(prepared)
        })
    }

    fn list_copies(&self, number: usize) -> io::Result<Listed> {
        let sub = format!("copies/{number:02x}");
        let mut listed = Listed::default();
        for (file, st) in self.space.list(&sub)? {
            let charged = self.space.charge_of_copy(&st);
            match sound(&file, &st) {
                Some((name, stamp, codec)) => {
                    let (size, changed) = (st.st_size as u64, st.st_ctime.unsigned_abs());
                    listed.copies.push(Found { name, stamp, size, charged, codec, changed });
                }
                None => {
                    let path = format!("{sub}/{file}");
                    listed.strange.push(Strange { path, charged, is_file: is_file(&st) });
                }
            }
        }
        listed.put_second_packed_copies_aside();
        Ok(listed)
    }
}

fn is_file(st: &Stat) -> bool {
    st.st_mode & 0o170_000 == 0o100_000
}

impl Found {
    fn path(&self) -> String {
        match self.codec {
            Some(codec) => packed_copies::path_of(self.name, codec),
            None => String::from_utf8_lossy(&self.name.rel_path()).into_owned(),
        }
    }
}

/// Name and stamp of a file that looks like a copy, and the codec of a packed one.
pub(super) fn sound(file: &str, st: &Stat) -> Option<(CopyName, Stamp, Option<Codec>)> {
    let (hex, codec) = packed_copies::split_suffix(file);
    let name = CopyName::parse(hex.as_bytes())?;
    let stamp = Stamp::from_time(st.st_mtime, u32::try_from(st.st_mtime_nsec).ok()?)?;
    (is_file(st) && stamp.matches(name)).then_some((name, stamp, codec))
}

/// The identity of this boot of the machine, if the kernel tells it.
pub(super) fn boot_id() -> Option<[u8; 16]> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let hex: String = id.chars().filter(char::is_ascii_hexdigit).collect();
    Some(u128::from_str_radix(&hex, 16).ok()?.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use crate::tier::{Sum, TierDir, write_all_at};
    use monarch_abi::hash::{CopyName, PathHash};
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::Path;
    use xxhash_rust::xxh3::xxh3_64;

    const FILES: [&str; 4] = ["log", "seed", "lock", "log.new"];

    #[derive(Clone, Debug)]
    enum Damage {
        Cut(u64),
        Flip(usize, u8),
        Bytes(Vec<u8>),
        Directory,
        Pipe,
        Link,
    }

    fn damage() -> impl Strategy<Value = Damage> {
        prop_oneof![
            (0u64..400).prop_map(Damage::Cut),
            (0usize..400, 1u8..).prop_map(|(at, bits)| Damage::Flip(at, bits)),
            proptest::collection::vec(any::<u8>(), 0..200).prop_map(Damage::Bytes),
            Just(Damage::Directory),
            Just(Damage::Pipe),
            Just(Damage::Link),
        ]
    }

    fn harm(path: &Path, damage: &Damage) {
        let mut bytes = fs::read(path).unwrap_or_default();
        let gone = || {
            let _ = fs::remove_file(path);
        };
        match damage {
            Damage::Cut(len) => bytes.truncate(*len as usize),
            Damage::Flip(at, bits) => bytes.get_mut(*at).into_iter().for_each(|b| *b ^= bits),
            Damage::Bytes(new) => bytes.clone_from(new),
            Damage::Directory => {
                gone();
                return fs::create_dir(path).unwrap();
            }
            Damage::Pipe => {
                gone();
                return rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
                    .unwrap();
            }
            Damage::Link => {
                gone();
                return symlink("/nowhere/at/all", path).unwrap();
            }
        }
        fs::write(path, bytes).unwrap();
    }

    fn publish(tier: &TierDir, n: u128) {
        let name = CopyName(n << 120 | n);
        let Ok(Some(file)) = tier.copies.create(8) else { return };
        write_all_at(file.fd(), &n.to_le_bytes()[..8], 0).unwrap();
        let stamp = name.stamp(PathHash { fp: 1 << 40, check: 5 });
        let _ = file.publish(name, stamp, Sum::whole(xxh3_64(&n.to_le_bytes()[..8])));
    }

    fn recovered(dir: &Path) -> Option<usize> {
        let tier = TierDir::open("t", dir, 64 << 20, 0).ok()?;
        tier.check_format().ok()?;
        let mut found = 0;
        tier.recover(|copy| {
            let bytes = (copy.name.0 & 0xff).to_le_bytes();
            assert!(copy.size == 8 && tier.copies.verify(copy.name, 8, Sum::whole(xxh3_64(&bytes[..8]))));
            found += 1;
        })
        .ok()?;
        publish(&tier, 200);
        let _ = (
            tier.log.sums(&std::iter::once(CopyName(7)).collect()),
            tier.compactor.compact_if_due(|| true),
            tier.trash.sweep(),
        );
        Some(found)
    }

    fn used(tier: &TierDir) -> u64 {
        tier.space.ledger.usage().used
    }

    #[test]
    fn what_version_0_2_0_left_in_dying_is_charged_until_it_is_closed_and_then_removed() {
        let dir = tempfile::tempdir().unwrap();
        let tier = TierDir::open("t", dir.path(), 64 << 20, 0).unwrap();
        tier.recover(|_| {}).unwrap();
        (1..3).for_each(|n| publish(&tier, n));
        let path = tier.path.clone();
        let held = tier.copies.open(CopyName(1 << 120 | 1)).unwrap();
        tier.trash.evict(CopyName(1 << 120 | 1), 8);
        assert_eq!(fs::read_dir(path.join("trash")).unwrap().count(), 1);
        drop(tier);
        fs::rename(path.join("trash"), path.join("dying")).unwrap();
        fs::write(path.join("dying/2.part"), [7; 9000]).unwrap();
        let tier = TierDir::open("t", dir.path(), 64 << 20, 0).unwrap();
        tier.recover(|_| {}).unwrap();
        assert!(!path.join("dying").exists());
        let left: Vec<_> = fs::read_dir(path.join("trash")).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!((left.len(), tier.trash.sweep()), (1, 1), "the closed one is gone, the open one is not: {left:?}");
        let charged = fs::metadata(&left[0]).unwrap().blocks() * 512 + crate::tier::ledger::NAME_COST;
        let before = used(&tier);
        drop(held);
        assert_eq!((tier.trash.sweep(), before - used(&tier)), (0, charged));
        assert_eq!(fs::read_dir(path.join("trash")).unwrap().count(), 0);
        // The ledger is the same as in a tier that never had the old directory.
        drop(tier);
        let tier = TierDir::open("t", dir.path(), 64 << 20, 0).unwrap();
        tier.recover(|_| {}).unwrap();
        assert_eq!(used(&tier), before - charged);
    }

    #[test]
    fn files_of_dying_that_cannot_be_moved_are_removed_there_and_another_file_of_its_name_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let tier = TierDir::open("t", dir.path(), 64 << 20, 0).unwrap();
        let path = tier.path.clone();
        drop(tier);
        fs::create_dir(path.join("dying")).unwrap();
        fs::write(path.join("dying/1.part"), [7; 9000]).unwrap();
        // The name is taken, by what no sweep removes.
        fs::create_dir(path.join("trash/1.part")).unwrap();
        let tier = TierDir::open("t", dir.path(), 64 << 20, 0).unwrap();
        tier.recover(|_| {}).unwrap();
        assert_eq!(fs::read_dir(path.join("dying")).unwrap().count(), 0);
        drop(tier);
        fs::remove_dir(path.join("trash/1.part")).unwrap();
        let tier = TierDir::open("t", dir.path(), 64 << 20, 0).unwrap();
        tier.recover(|_| {}).unwrap();
        assert!(!path.join("dying").exists());
        drop(tier);
        fs::write(path.join("dying"), "dear").unwrap();
        let tier = TierDir::open("t", dir.path(), 64 << 20, 0).unwrap();
        tier.recover(|_| {}).unwrap();
        assert_eq!(fs::read(path.join("dying")).unwrap(), b"dear");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(120))]
        /// Neither does it end the agent, nor is a copy found that was not made.
        #[test]
        fn whatever_becomes_of_the_files_of_a_tier_the_next_agent_goes_on(
            file in proptest::sample::select(&FILES[..]),
            what in damage(),
            while_open: bool,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let tier = TierDir::open("t", dir.path(), 64 << 20, 0).unwrap();
            tier.recover(|_| {}).unwrap();
            (1..6).for_each(|n| publish(&tier, n));
            let path = tier.path.clone();
            if while_open {
                harm(&path.join(file), &what);
                (6..9).for_each(|n| publish(&tier, n));
                let _ = (tier.log.sums(&std::iter::once(CopyName(7)).collect()), tier.compactor.compact_if_due(|| true), tier.trash.sweep());
                drop(tier);
            } else {
                drop(tier);
                harm(&path.join(file), &what);
            }
            let found = recovered(dir.path());
            let intact = file != "log" && (file != "lock" || matches!(what, Damage::Cut(_) | Damage::Flip(..) | Damage::Bytes(_)));
            prop_assert!(!intact || found.is_some_and(|n| n >= 5), "{found:?}");
        }
    }
}
