//! A number per file: dense runs of files cost what an array would, files far apart cost a page
//! each.

use crate::FileKey;
use std::collections::HashMap;

/// Files of a page.
const FILES_PER_PAGE: usize = 1024;
const PAGE_BITS: u32 = FILES_PER_PAGE.trailing_zeros();

/// A number per file. Files that were never set have 0.
#[derive(Clone, Debug, Default)]
pub struct PerFile {
    pages: HashMap<u64, Box<[u32; FILES_PER_PAGE]>>,
}

impl PerFile {
    /// The number of a file.
    #[must_use]
    pub fn get(&self, file: FileKey) -> u32 {
        self.pages.get(&(file.0 >> PAGE_BITS)).map_or(0, |p| p[place(file)])
    }

    /// Sets a number, and returns the previous one.
    pub fn replace(&mut self, file: FileKey, value: u32) -> u32 {
        let page = self.pages.entry(file.0 >> PAGE_BITS).or_insert_with(|| Box::new([0; FILES_PER_PAGE]));
        std::mem::replace(&mut page[place(file)], value)
    }

    /// The numbers of all files, and of some others.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut u32> {
        self.pages.values_mut().flat_map(|p| p.iter_mut())
    }

    /// All files whose number is not 0, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (FileKey, u32)> + '_ {
        self.pages.iter().flat_map(|(page, values)| {
            let files = values.iter().enumerate().filter(|(_, v)| **v != 0);
            files.map(move |(at, v)| (FileKey(page << PAGE_BITS | at as u64), *v))
        })
    }

    /// Sets all to 0, and keeps the memory for the same files.
    pub fn clear(&mut self) {
        self.values_mut().for_each(|v| *v = 0);
    }
}

fn place(file: FileKey) -> usize {
    (file.0 % FILES_PER_PAGE as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_keep_their_numbers_apart() {
        let mut p = PerFile::default();
        let files = [0, 1, 1023, 1024, u64::from(u32::MAX), 1 << 32, u64::MAX];
        for (n, f) in (1..).zip(files) {
            assert_eq!(p.replace(FileKey(f), n), 0);
        }
        for (n, f) in (1..).zip(files) {
            assert_eq!((p.get(FileKey(f)), p.replace(FileKey(f), n)), (n, n));
        }
        assert_eq!(p.get(FileKey(2)), 0);
        let mut all: Vec<_> = p.iter().collect();
        all.sort();
        assert_eq!(all.len(), files.len());
        p.clear();
        assert_eq!((p.iter().count(), p.get(FileKey(1023))), (0, 0));
    }
}
