//! Working sets: the files that a job opened first below a root, in that order, kept for the next
//! job.
//!
//! The sets of all roots lie in one file of a tier. It is read as a whole and believed only if its
//! checksum fits. Paths are relative, so that they mean the same after another scan. A path may
//! name anything by then: it is looked up in the index, and serves as a wish, never as a fact.
//!
//! ```text
//! 0   magic "MONWSET1"             8
//! 8   format version               4     number of roots 4
//! 16  bytes behind the header      8
//! 24  XXH3-64 of all other bytes   8
//! 32  for each root:
//!     0   root id (hash of its real path)  8
//!     8   time of its last job, seconds    8
//!     16  number of files                  4
//!     20  1: that job opened all data          1
//!     21  jobs in a row that opened less than half  1
//!     22  how long its index took, 10 ms       2   0: not known
//!     24  for each file: history 1   zero 1   length of the path 2   path
//! ```

use std::collections::{HashMap, HashSet};
use xxhash_rust::xxh3::Xxh3;

const MAGIC: [u8; 8] = *b"MONWSET1";
const VERSION: u32 = 1;
const HEADER: usize = 32;
/// Offset of the checksum.
const SUM: usize = 24;
/// Bytes of a root before its files, and of a file before its path.
const ROOT_HEAD: usize = 24;
const FILE_HEAD: usize = 4;
/// Most files of a set.
pub const MAX_FILES: usize = 1 << 16;
/// Most bytes of the paths of a set.
pub const MAX_PATH_BYTES: usize = 8 << 20;
/// Most sets that are kept; those of the last jobs stay.
pub const MAX_SETS: usize = 16;
/// Most bytes of a file of sets that are read.
pub const MAX_LEN: u64 = (HEADER + MAX_SETS * (ROOT_HEAD + MAX_PATH_BYTES + MAX_FILES * FILE_HEAD)) as u64;
/// The jobs whose opens keep a file in a set, one bit each, the last one first.
const REMEMBERED: u8 = 0b111;
/// Jobs in a row that opened less than half of the data, after which that counts as known.
const PARTIAL_JOBS: u8 = 2;

/// A file of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetFile {
    /// Its path below the root.
    pub path: Vec<u8>,
    /// Bit 0: the last job opened it; bit 1: the job before; bit 2: the job before that.
    pub history: u8,
}

impl SetFile {
    /// Whether the next job is likely to open it. Software is the same at each start; of data a
    /// job may take another sample each time, so that two jobs in a row have to have opened it.
    #[must_use]
    pub const fn is_likely(&self, is_software: bool) -> bool {
        let steady = self.history & 0b11 == 0b11;
        steady || (is_software && (self.history & 1 == 1 || self.history & 0b110 == 0b110))
    }
}

/// The working set of a root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkingSet {
    /// The id of the root: see [`crate::index::root_id`].
    pub root: u64,
    /// When its last job was noted, seconds since 1970.
    pub at: u64,
    /// Whether that job opened all data below the root.
    pub whole: bool,
    /// Jobs in a row that opened less than half of the data.
    pub partial_jobs: u8,
    /// How long its index took to be made, in hundredths of a second; 0 when that is not known.
    pub index_time_cs: u16,
    /// Its files, in the order in which they were opened first.
    pub files: Vec<SetFile>,
}

/// What a job opened.
#[derive(Clone, Debug, Default)]
pub struct JobOpens {
    /// The files that it opened first, in order, each once.
    pub paths: Vec<Vec<u8>>,
    /// Number of data files that it opened, and of all data files; `None` if that says nothing of
    /// the job.
    pub data: Option<(u64, u64)>,
    /// How long the index took to be made, in hundredths of a second.
    pub index_time_cs: u16,
}

impl WorkingSet {
    /// Whether jobs are known to open less than half of the data.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        self.partial_jobs >= PARTIAL_JOBS
    }

    /// The set after a further job at time `at`.
    ///
    /// A file stays while one of the last three jobs opened it. A small job, which opened less than
    /// a quarter of the set and nothing else, ages no file: `python -V` does not make a training
    /// job's set forgotten.
    #[must_use]
    pub fn after(&self, job: &JobOpens, at: u64) -> Self {
        let before: HashMap<&[u8], u8> = self.files.iter().map(|f| (&f.path[..], f.history)).collect();
        let opened: HashSet<&[u8]> = job.paths.iter().map(|path| &path[..]).collect();
        let last = self.files.iter().filter(|f| f.history & 1 == 1).count();
        let is_small = opened.len() * 4 < last && opened.iter().all(|path| before.contains_key(path));
        let mut files = Vec::new();
        if is_small {
            let marked = |f: &SetFile| f.history | u8::from(opened.contains(&f.path[..]));
            files.extend(self.files.iter().map(|f| SetFile { path: f.path.clone(), history: marked(f) }));
        } else {
            let history = |path: &[u8]| before.get(path).map_or(1, |h| (h << 1 | 1) & REMEMBERED);
            files.extend(job.paths.iter().map(|path| SetFile { path: path.clone(), history: history(path) }));
            let older = self.files.iter().filter(|f| !opened.contains(&f.path[..]));
            let aged = older.map(|f| SetFile { path: f.path.clone(), history: f.history << 1 & REMEMBERED });
            files.extend(aged.filter(|f| f.history != 0));
        }
        let mut bytes = 0;
        files.truncate(MAX_FILES);
        files.retain(|f| {
            bytes += f.path.len();
            bytes <= MAX_PATH_BYTES
        });
        let (whole, partial_jobs) = match job.data {
            Some((opened, all)) if opened > 0 && all > 0 => {
                let is_partial = opened.saturating_mul(2) < all;
                let jobs = if is_partial { self.partial_jobs.saturating_add(1) } else { 0 };
                (opened.saturating_mul(10) >= all.saturating_mul(9) || (self.whole && !is_partial), jobs)
            }
            _ => (self.whole, self.partial_jobs),
        };
        let index_time_cs = if is_small { self.index_time_cs } else { job.index_time_cs };
        Self { root: self.root, at, whole, partial_jobs, index_time_cs, files }
    }
}

/// Replaces the set of a root among all sets, and leaves the sets of the last [`MAX_SETS`] jobs.
pub fn put(sets: &mut Vec<WorkingSet>, set: WorkingSet) {
    sets.retain(|other| other.root != set.root);
    sets.push(set);
    sets.sort_by_key(|set| set.at);
    sets.drain(..sets.len().saturating_sub(MAX_SETS));
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(bytes.get(..SUM).unwrap_or_default());
    hash.update(bytes.get(SUM + 8..).unwrap_or_default());
    hash.digest()
}

/// The bytes of a file of sets.
#[must_use]
pub fn encode(sets: &[WorkingSet]) -> Vec<u8> {
    let mut out = vec![0; HEADER];
    for set in sets {
        out.extend_from_slice(&set.root.to_le_bytes());
        out.extend_from_slice(&set.at.to_le_bytes());
        out.extend_from_slice(&(set.files.len() as u32).to_le_bytes());
        out.extend_from_slice(&[u8::from(set.whole), set.partial_jobs]);
        out.extend_from_slice(&set.index_time_cs.to_le_bytes());
        for file in &set.files {
            out.extend_from_slice(&[file.history, 0]);
            out.extend_from_slice(&(file.path.len() as u16).to_le_bytes());
            out.extend_from_slice(&file.path);
        }
    }
    let behind = (out.len() - HEADER) as u64;
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&(sets.len() as u32).to_le_bytes());
    out[16..24].copy_from_slice(&behind.to_le_bytes());
    let sum = checksum(&out);
    out[SUM..SUM + 8].copy_from_slice(&sum.to_le_bytes());
    out
}

/// The sets in the bytes of a file.
///
/// # Errors
/// What is wrong with them.
pub fn decode(bytes: &[u8]) -> Result<Vec<WorkingSet>, &'static str> {
    let mut rest = Bytes(bytes);
    if rest.take(8) != Some(&MAGIC[..]) {
        return Err("it is no file of working sets");
    }
    if rest.u32() != Some(VERSION) {
        return Err("it is of another version");
    }
    let cut = "it was cut short";
    let (count, len, sum) = (rest.u32().ok_or(cut)?, rest.u64().ok_or(cut)?, rest.u64().ok_or(cut)?);
    if len != rest.0.len() as u64 {
        return Err(cut);
    }
    if sum != checksum(bytes) {
        return Err("its checksum does not fit");
    }
    let senseless = "it does not make sense";
    if count as usize > MAX_SETS {
        return Err(senseless);
    }
    let sets: Option<Vec<WorkingSet>> = (0..count).map(|_| rest.set()).collect();
    sets.filter(|_| rest.0.is_empty()).ok_or(senseless)
}

/// Bytes that are read from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn set(&mut self) -> Option<WorkingSet> {
        let (root, at, count) = (self.u64()?, self.u64()?, self.u32()? as usize);
        let [whole, partial_jobs] = self.array()?;
        let index_time_cs = self.array().map(u16::from_le_bytes)?;
        if count > MAX_FILES {
            return None;
        }
        let files: Option<Vec<SetFile>> = (0..count).map(|_| self.file()).collect();
        Some(WorkingSet { root, at, whole: whole == 1, partial_jobs, index_time_cs, files: files? })
    }

    fn file(&mut self) -> Option<SetFile> {
        let [history, _] = self.array()?;
        let len = usize::from(self.array().map(u16::from_le_bytes)?);
        let path = self.take(len)?;
        is_relative(path).then(|| SetFile { path: path.to_vec(), history: history & REMEMBERED })
    }
}

/// Whether a path leads to something below the root, by its names alone.
fn is_relative(path: &[u8]) -> bool {
    path.split(|&b| b == b'/').all(|name| !matches!(name, b"" | b"." | b"..") && !name.contains(&0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opens(names: &[&str]) -> JobOpens {
        JobOpens { paths: names.iter().map(|n| n.as_bytes().to_vec()).collect(), data: None, index_time_cs: 7 }
    }

    fn names(set: &WorkingSet) -> Vec<(String, u8)> {
        set.files.iter().map(|f| (String::from_utf8_lossy(&f.path).into_owned(), f.history)).collect()
    }

    fn some() -> Vec<WorkingSet> {
        let first = WorkingSet { root: 7, ..WorkingSet::default() }.after(&opens(&["lib/a.pyc", "lib/b.so"]), 5);
        vec![first.clone(), WorkingSet { root: 8, whole: true, partial_jobs: 1, ..first }]
    }

    #[test]
    fn what_is_written_is_read() {
        for sets in [Vec::new(), some()] {
            assert_eq!(decode(&encode(&sets)), Ok(sets));
        }
    }

    #[test]
    fn each_damaged_byte_and_each_cut_is_noticed() {
        let bytes = encode(&some());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            assert!(decode(&damaged).is_err(), "byte {at}");
            assert!(decode(&bytes[..at]).is_err(), "{at} bytes");
        }
        assert!(decode(&[bytes, vec![0]].concat()).is_err());
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for path in ["/etc/passwd", "../x", "a//b", "a/./b", "", "a/\0", "a/.."] {
            let mut sets = some();
            sets[0].files[0].path = path.into();
            assert!(decode(&encode(&sets)).is_err(), "{path:?}");
        }
    }

    #[test]
    fn the_last_job_comes_first_and_a_file_stays_for_three_jobs() {
        let set = WorkingSet::default().after(&opens(&["a", "b", "c"]), 1).after(&opens(&["c", "d"]), 2);
        let expected = |of: &[(&str, u8)]| of.iter().map(|(n, h)| ((*n).to_owned(), *h)).collect::<Vec<_>>();
        assert_eq!(names(&set), expected(&[("c", 3), ("d", 1), ("a", 2), ("b", 2)]));
        let set = set.after(&opens(&["e", "d"]), 3);
        assert_eq!(names(&set), expected(&[("e", 1), ("d", 3), ("c", 6), ("a", 4), ("b", 4)]));
        let set = set.after(&opens(&["e", "d"]), 4);
        assert_eq!(names(&set), expected(&[("e", 3), ("d", 7), ("c", 4)]));
    }

    #[test]
    fn a_small_job_ages_nothing() {
        let all: Vec<String> = (0..100).map(|n| format!("m{n}")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let set = WorkingSet::default().after(&opens(&all), 1);
        let after = set.after(&opens(&all[3..10]), 2);
        assert_eq!((names(&after), after.at), (names(&set), 2));
        let after = set.after(&JobOpens { index_time_cs: 0, ..opens(&all[3..10]) }, 2);
        assert_eq!(after.index_time_cs, 7, "what the index took for the jobs before counts");
        let other = set.after(&opens(&["x", "m1"]), 2);
        assert_eq!(names(&other)[..3], [("x".to_owned(), 1), ("m1".to_owned(), 3), ("m0".to_owned(), 2)]);
    }

    #[test]
    fn of_data_two_jobs_have_to_have_opened_a_file() {
        let likely = |history, software| SetFile { path: Vec::new(), history }.is_likely(software);
        let seen: Vec<u8> = (0..8).filter(|&h| likely(h, true)).collect();
        assert_eq!(seen, [1, 3, 5, 6, 7]);
        let seen: Vec<u8> = (0..8).filter(|&h| likely(h, false)).collect();
        assert_eq!(seen, [3, 7]);
    }

    #[test]
    fn whether_all_was_read_follows_from_the_last_jobs() {
        let job = |opened, all| JobOpens { data: Some((opened, all)), ..JobOpens::default() };
        let told = |s: &WorkingSet| (s.whole, s.is_partial());
        let whole = WorkingSet::default().after(&job(95, 100), 1);
        assert_eq!(told(&whole), (true, false));
        assert_eq!(told(&whole.after(&job(0, 100), 2)), (true, false), "a job that read no data");
        assert_eq!(told(&whole.after(&job(60, 100), 2)), (true, false), "a job that was ended");
        let part = whole.after(&job(10, 100), 2);
        assert_eq!(told(&part), (false, false));
        assert_eq!(told(&part.after(&job(10, 100), 3)), (false, true));
        assert_eq!(told(&part.after(&job(10, 100), 3).after(&job(100, 100), 4)), (true, false));
    }

    #[test]
    fn the_sets_of_the_last_jobs_are_kept_and_sets_are_bounded() {
        let mut sets = Vec::new();
        for n in 0..40 {
            put(&mut sets, WorkingSet { root: n % 20, at: n, ..WorkingSet::default() });
        }
        assert_eq!(sets.iter().map(|s| s.at).collect::<Vec<_>>(), (24..40).collect::<Vec<_>>());
        let long = "x".repeat(4000);
        let many: Vec<String> =
            (0..70_000).map(|n| if n < 3000 { format!("{long}{n}") } else { n.to_string() }).collect();
        let set = WorkingSet::default().after(&opens(&many.iter().map(String::as_str).collect::<Vec<_>>()), 1);
        let bytes: usize = set.files.iter().map(|f| f.path.len()).sum();
        assert!(bytes <= MAX_PATH_BYTES && set.files.len() < MAX_FILES, "{bytes}");
        assert!((encode(&[set]).len() as u64) < MAX_LEN);
    }
}
