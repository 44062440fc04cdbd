//! A directory that the index does not hold, as a scan would have it: kept in memory, and answered
//! from there by name or as a listing.

use super::listed::{DirReader, Listed, decode, encode_all};
use monarch_abi::index::{DIR_INCOMPLETE, OWNER_KERNEL};
use monarch_abi::names::{Attributes, ITEM_HEAD_LEN, LISTING_HEAD_LEN, MAX_NAMES_BYTES};

/// Bytes of a directory beside its entries.
const OVERHEAD_BYTES: usize = 256;

/// A directory that the index does not hold.
#[derive(Debug)]
pub struct Directory {
    listed: Listed,
    /// Positions of the entries, in the order of their names.
    by_name: Vec<u32>,
}

impl Directory {
    /// Reads the directory with this path relative to the root; `None` if it cannot be read, is
    /// reached through a link, lies on another device, or is too large for a message.
    #[must_use]
    pub fn read(reader: &DirReader, rel: &[u8]) -> Option<Self> {
        let path = if rel.is_empty() { b".".to_vec() } else { [b"./", rel].concat() };
        Some(Self::new(reader.read(&[&path]).ok()?.pop()??))
    }

    /// The directory of a message that [`Directory::encode`] has made; `None` if it is none.
    #[must_use]
    pub fn decode(message: &[u8]) -> Option<Self> {
        match &mut *decode(message)? {
            [listed] => Some(Self::new(listed.take()?)),
            _ => None,
        }
    }

    /// A directory of this number of files, for measurements; `n` is part of their names.
    #[must_use]
    pub fn synthetic(n: u32, files: u32) -> Self {
        Self::new(Listed::synthetic(n, files))
    }

    fn new(listed: Listed) -> Self {
        let dir = &listed.dir;
        let mut by_name: Vec<u32> = (0..dir.entries.len() as u32).collect();
        let name = |at: u32| dir.entries.get(at as usize).map(|r| dir.name(r));
        by_name.sort_unstable_by(|a, b| name(*a).cmp(&name(*b)));
        Self { listed, by_name }
    }

    /// As a message. Entries for whose names `is_changed` is true are left to the kernel of the
    /// receiver.
    #[must_use]
    pub fn encode(&self, is_changed: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        encode_all(&[Some(&self.listed)], is_changed)
    }

    /// Bytes that it takes in memory.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.listed.dir.held_bytes() + self.by_name.capacity() * 4 + self.listed.owners.capacity() * 8 + OVERHEAD_BYTES
    }

    /// Number of its entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether it has no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The attributes of the entry with this name; `None`: the kernel knows. Of a file with several
    /// names these change without a trace here.
    #[must_use]
    pub fn attributes(&self, name: &[u8]) -> Option<Attributes> {
        let dir = &self.listed.dir;
        let of = |at: &u32| dir.entries.get(*at as usize).map_or(&b""[..], |r| dir.name(r));
        let at = *self.by_name.get(self.by_name.binary_search_by(|at| of(at).cmp(name)).ok()?)? as usize;
        let record = *dir.entries.get(at)?;
        let owner = *self.listed.owners.get(usize::from(record.owner))?;
        if record.owner == OWNER_KERNEL || (record.nlink > 1 && !record.is_dir()) {
            return None;
        }
        let btime_ns = dir.btimes.get(at).copied().unwrap_or(i64::MIN);
        Some(Attributes { record, uid: owner as u32, gid: (owner >> 32) as u32, btime_ns })
    }

    /// The listing as an answer to a process, without the first byte; `None`: the kernel knows.
    #[must_use]
    pub fn listing(&self) -> Option<Vec<u8>> {
        let dir = &self.listed.dir;
        let len = dir.names.len() + dir.entries.len() * ITEM_HEAD_LEN;
        if dir.flags & DIR_INCOMPLETE != 0 || len > MAX_NAMES_BYTES {
            return None;
        }
        let mut out = Vec::with_capacity(1 + LISTING_HEAD_LEN + len);
        out.extend_from_slice(&self.listed.own.ino.to_le_bytes());
        out.extend_from_slice(&dir.parent_ino.to_le_bytes());
        out.extend_from_slice(&(len as u32).to_le_bytes());
        for r in &dir.entries {
            out.extend_from_slice(&r.ino.to_le_bytes());
            out.extend_from_slice(&[r.d_type(), r.name_len]);
            out.extend_from_slice(dir.name(r));
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Limits;
    use monarch_abi::names::{item, listing_head};
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;

    fn reader(root: &std::path::Path) -> DirReader {
        DirReader::new(root.to_owned(), Arc::new(Limits::new(None, None)), 1)
    }

    #[test]
    fn a_directory_answers_as_the_kernel_does_here_and_after_it_was_sent() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("a/b");
        std::fs::create_dir_all(dir.join("below")).unwrap();
        (0..50).for_each(|n| std::fs::write(dir.join(format!("{n}")), vec![0; n]).unwrap());
        std::os::unix::fs::symlink("7", dir.join("link")).unwrap();
        std::fs::hard_link(dir.join("3"), dir.join("same")).unwrap();
        let here = Directory::read(&reader(top.path()), b"a/b").unwrap();
        let sent = Directory::decode(&here.encode(|_| false)).unwrap();
        assert_eq!((here.len(), here.is_empty()), (53, false));
        for of in [&here, &sent] {
            for entry in std::fs::read_dir(&dir).unwrap().flatten() {
                let name = entry.file_name().into_encoded_bytes();
                let is = entry.path().symlink_metadata().unwrap();
                let Some(a) = of.attributes(&name) else {
                    assert!(is.nlink() > 1, "{entry:?}");
                    continue;
                };
                assert_eq!((a.record.size, a.record.ino, u32::from(a.record.mode)), (is.len(), is.ino(), is.mode()));
                assert_eq!((a.uid, a.gid, u64::from(a.record.nlink)), (is.uid(), is.gid(), is.nlink()));
                assert_eq!(a.record.mtime_ns, is.mtime() * 1_000_000_000 + is.mtime_nsec());
            }
            assert!(of.attributes(b"none").is_none() && of.attributes(b"").is_none());
            let listing = of.listing().unwrap();
            let (ino, parent, len) = listing_head(listing.first_chunk().unwrap()).unwrap();
            assert_eq!(ino, dir.metadata().unwrap().ino());
            assert_eq!(parent, top.path().join("a").metadata().unwrap().ino());
            let names = &listing[LISTING_HEAD_LEN..];
            assert_eq!(names.len(), len);
            let (mut at, mut seen) = (0, 0);
            while let Some((entry, next)) = item(names, at) {
                let path = dir.join(std::str::from_utf8(entry.name).unwrap());
                assert_eq!(entry.ino, path.symlink_metadata().unwrap().ino());
                (at, seen) = (next, seen + 1);
            }
            assert_eq!((at, seen), (len, 53));
        }
        assert!(here.held_bytes() < 53 * 200 + 1024, "{}", here.held_bytes());
    }

    #[test]
    fn what_has_changed_is_left_out_of_what_is_sent() {
        let top = tempfile::tempdir().unwrap();
        ["a", "b"].iter().for_each(|name| std::fs::write(top.path().join(name), "").unwrap());
        let here = Directory::read(&reader(top.path()), b"").unwrap();
        let sent = Directory::decode(&here.encode(|name| name == b"a")).unwrap();
        assert!(here.attributes(b"a").is_some());
        assert!(sent.attributes(b"a").is_none() && sent.attributes(b"b").is_some());
        assert!(sent.listing().is_some(), "its name is there as before");
    }

    #[test]
    fn what_lies_behind_a_link_or_outside_is_not_read() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("root/real")).unwrap();
        std::fs::create_dir(top.path().join("outside")).unwrap();
        std::os::unix::fs::symlink("real", top.path().join("root/link")).unwrap();
        std::os::unix::fs::symlink("../outside", top.path().join("root/out")).unwrap();
        let reader = reader(&top.path().join("root"));
        assert!(Directory::read(&reader, b"real").is_some() && Directory::read(&reader, b"").is_some());
        for path in [&b"link"[..], b"out", b"../outside", b"none", b"real/..", b"/", b"a//b", b"./real"] {
            assert!(Directory::read(&reader, path).is_none(), "{}", String::from_utf8_lossy(path));
        }
        assert!(Directory::decode(b"MONDIR01").is_none() && Directory::decode(b"").is_none());
        assert!(Directory::decode(b"MONDIR01\0").is_none(), "one that could not be read");
    }
}
