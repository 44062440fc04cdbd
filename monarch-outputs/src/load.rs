//! Takes in what an earlier agent has left in a staging directory: journal, log, data, overlay.

use crate::errors::OutputsError;
use crate::journal::{Damage, End, JournalReader};
use crate::kept::{self, KEPT};
use crate::plan::Planner;
use crate::plan_file;
use crate::published::{Flaw, Kind, LogBegin, LogEntry, OpenedLog, PublishedLog};
use crate::staging::{StagingDir, read_info};
use monarch_abi::outputs::names::{Clean, Link, Staged, clean_text};
use monarch_abi::outputs::record::{self, MAX_BYTES, MIN_FILLER, Op};
use monarch_abi::outputs::{JOURNAL, PUBLISHED};
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Staged files that no record names are left alone for so long, in seconds: a process may be about
/// to append the record.
const ORPHAN_AGE_S: i64 = 60;

/// A clean copy: the name, and what the link says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CleanCopy {
    /// Its name below the output root.
    pub name: Vec<u8>,
    /// What was published.
    pub clean: Clean,
}

/// A staging directory that was taken in.
#[derive(Debug)]
pub struct Loaded {
    /// What is to be done.
    pub planner: Planner,
    /// Reads what comes.
    pub reader: JournalReader,
    /// The log of what was published.
    pub log: PublishedLog,
    /// Its entries.
    pub entries: Vec<LogEntry>,
    /// Clean copies, oldest first.
    pub clean: Vec<CleanCopy>,
}

/// Reads journal and log, and makes state and overlay agree with them. `is_salvage`: records behind
/// damage in the journal are read, and what they do not explain is kept apart ([`kept`]).
///
/// # Errors
/// [`OutputsError`]; of damage that is not to be salvaged, before anything is changed.
pub fn load(staging: &StagingDir, is_salvage: bool) -> Result<Loaded, OutputsError> {
    let lock = staging.lock_journal()?;
    let (log, entries) = open_log(staging)?;
    let state = staging.state();
    let of_this_boot = staging.is_of_this_boot();
    let begin = entries.first().and_then(LogEntry::begin).unwrap_or_default();
    let planner = plan_at(staging, &begin)?;
    let mut reader = staging.reader()?;
    let limit = if of_this_boot { state.tail.load(Ordering::Acquire) } else { staging.journal_len() };
    let journal = staging.path().join(JOURNAL);
    let Replayed { mut planner, end, damage, opened, last } =
        replay(&mut reader, limit, planner, &entries).map_err(OutputsError::io("read", &journal))?;
    if end == End::Newer {
        return Err(OutputsError::Newer { path: journal });
    }
    // In this boot the end is known. After another one, what nothing is behind was being written.
    let is_damaged = !damage.is_empty() || (end == End::Torn && of_this_boot);
    if is_damaged && !is_salvage {
        return Err(OutputsError::Damaged { path: journal, what: "a record below its end" });
    }
    let evidence = Evidence::new(&entries, opened, begin.next_id, is_damaged);
    let done = keep_unexplained(staging, &mut planner, &evidence)?;
    fill_damage(&staging.path().join(JOURNAL), &damage)?;
    let known_seq = if of_this_boot { state.seq.load(Ordering::Acquire) } else { 0 };
    // After a loss of power the log may know of records that the journal has lost: their numbers
    // are not given again.
    let logged_seq = entries.iter().map(|entry| entry.seq.max(entry.read)).max().unwrap_or(0);
    state.tail.store(reader.offset(), Ordering::Release);
    state.seq.store(planner.last_seq().max(known_seq).max(logged_seq), Ordering::Release);
    state.published.store(planner.published(), Ordering::Release);
    state.last_entry.store(last.entry, Ordering::Release);
    // A state file that is new after a loss of power must not take old news for its own.
    state.node_news.fetch_max(last.node_news, Ordering::AcqRel);
    state.last_closed.store(0, Ordering::Release);
    state.end_publishing();
    state.sleepers.store(0, Ordering::Release);
    let files = staging.data_files().map_err(OutputsError::io("list", staging.path()))?;
    let kept = kept::list(staging.path()).map_err(OutputsError::io("read", &staging.path().join(KEPT)))?;
    let ids = files.iter().map(|file| file.id).chain(kept.iter().filter_map(|kept| kept.id)).map(|id| id + 1);
    let logged = entries.iter().filter(|entry| entry.begin().is_none()).map(|entry| entry.id + 1);
    let next = ids.chain(logged).chain([begin.next_id, planner.max_id() + 1, 1]).max().unwrap_or(1);
    if of_this_boot {
        state.next_id.fetch_max(next, Ordering::AcqRel);
    } else {
        state.next_id.store(next, Ordering::Release);
        for counter in [&state.room, &state.wanted_room] {
            counter.store(0, Ordering::Release);
        }
        for word in [&state.held_errno, &state.waiters] {
            word.store(0, Ordering::Release);
        }
    }
    rebuild_tree(staging, &planner, &entries, &files)?;
    let clean = clean_copies(staging)?;
    let has_copy: HashSet<u64> = clean.iter().map(|copy| copy.clean.file.id).collect();
    done.iter().filter(|file| !has_copy.contains(&file.id)).for_each(|file| staging.remove_data(file));
    staging.write_info()?;
    drop(lock);
    Ok(Loaded { planner, reader, log, entries, clean })
}

/// Opens the log of what was published, and begins it if the staging directory is new.
fn open_log(staging: &StagingDir) -> Result<(PublishedLog, Vec<LogEntry>), OutputsError> {
    let path = staging.path().join(PUBLISHED);
    let OpenedLog { mut log, entries, flaw } =
        PublishedLog::open(staging.dir()).map_err(OutputsError::io("read", &path))?;
    let is_new = entries.is_empty() && staging.journal_len() == 0;
    match flaw {
        Some(Flaw::Newer) => return Err(OutputsError::Newer { path }),
        // A log has an entry before the first record is appended.
        None if !entries.is_empty() || is_new => {}
        Some(Flaw::Damaged) | None => return Err(OutputsError::LogDamaged { staging: staging.path().to_owned() }),
    }
    if is_new {
        let begin = LogBegin { seq: 0, next_id: 1, plan: None };
        log.begin_again(staging.dir(), &begin).map_err(OutputsError::io("write", &path))?;
    }
    Ok((log, entries))
}

/// What says that a staged file is done with.
struct Evidence {
    /// Sizes and times of published files, by the numbers of their staged files.
    logged: HashMap<u64, Vec<(u64, i64)>>,
    /// Files of which a record was read that opened them.
    opened: HashSet<u64>,
    /// Files of lower numbers were done with when the journal began.
    first_id: u64,
    /// Whether records are lost: then only the log counts, and only of files as they were then.
    is_damaged: bool,
}

impl Evidence {
    fn new(entries: &[LogEntry], opened: HashSet<u64>, first_id: u64, is_damaged: bool) -> Self {
        let mut logged: HashMap<u64, Vec<(u64, i64)>> = HashMap::new();
        for entry in entries.iter().filter(|entry| entry.begin().is_none()) {
            logged.entry(entry.id).or_default().push((entry.size, entry.mtime_ns));
        }
        Self { logged, opened, first_id, is_damaged }
    }

    /// `is_settled`: no process can be about to append the record of the file.
    fn is_done(&self, file: &Staged, st: &rustix::fs::Stat, is_settled: bool) -> bool {
        let logged = self.logged.get(&file.id);
        if self.is_damaged {
            let now = (st.st_size as u64, st.st_mtime * 1_000_000_000 + st.st_mtime_nsec as i64);
            return logged.is_some_and(|published| published.contains(&now));
        }
        self.opened.contains(&file.id) || file.id < self.first_id && is_settled || logged.is_some()
    }
}

/// Keeps staged files apart that no record explains, or whose name is not that of their records.
/// Returns those that are done with, unless their links say that they are clean copies.
fn keep_unexplained(
    staging: &StagingDir,
    planner: &mut Planner,
    evidence: &Evidence,
) -> Result<Vec<Staged>, OutputsError> {
    let links = staging.tree().links().map_err(OutputsError::io("read the overlay of", staging.path()))?;
    let (mut names, mut clean): (HashMap<u64, Vec<u8>>, HashSet<u64>) = (HashMap::new(), HashSet::new());
    for (name, text) in &links {
        match Link::parse(text) {
            Some(Link::File(file)) => drop(names.insert(file.id, name.clone())),
            Some(Link::Clean(copy)) => drop(clean.insert(copy.file.id)),
            _ => {}
        }
    }
    let is_damaged = evidence.is_damaged;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_secs() as i64);
    let (mut kept, mut done) = (Vec::new(), Vec::new());
    for file in staging.data_files().map_err(OutputsError::io("list", staging.path()))? {
        let Ok(st) = staging.stat_data(&file) else { continue };
        let name = names.get(&file.id);
        // A process may be about to append the record.
        let is_settled = is_damaged || !staging.is_of_this_boot() || now - st.st_ctime > ORPHAN_AGE_S;
        if let Some(planned) = planner.file(file.id) {
            // (A rename may be among the records that are lost.)
            if is_damaged && name.is_some_and(|name| *name != planned.name) {
                kept.push((file, name.cloned()));
            }
        } else if clean.contains(&file.id) || evidence.is_done(&file, &st, is_settled) {
            done.push(file);
        } else if is_settled && st.st_size == 0 && !is_damaged {
            // Its process was killed before its open returned.
            done.push(file);
        } else if is_settled {
            kept.push((file, name.cloned()));
        }
    }
    kept::keep(staging, &kept, is_damaged)?;
    let all = kept::list(staging.path()).map_err(OutputsError::io("read", &staging.path().join(KEPT)))?;
    for id in all.iter().filter_map(|kept| kept.id) {
        // What its records say of it is not done.
        planner.lost(id);
    }
    if !all.is_empty() {
        drop(planner.take_notes());
    }
    Ok(done)
}

/// What the state says of the records.
struct LastRecords {
    /// The last one that has a place in the order.
    entry: u64,
    /// The most news of other nodes that one has.
    node_news: u32,
}

/// What a replay gives.
struct Replayed {
    planner: Planner,
    end: End,
    damage: Vec<Damage>,
    /// Files that a record has opened.
    opened: HashSet<u64>,
    last: LastRecords,
}

/// The plan with which the log begins.
fn plan_at(staging: &StagingDir, begin: &LogBegin) -> Result<Planner, OutputsError> {
    let Some(file) = begin.plan else {
        plan_file::remove_others(staging.dir(), None);
        return Ok(Planner::after(begin.seq));
    };
    let plan = file.read(staging.dir()).map_err(OutputsError::io("read the plan in", staging.path()))?;
    if plan.as_deref().is_some_and(Planner::is_newer_checkpoint) {
        return Err(OutputsError::Newer { path: file.path(staging.path()) });
    }
    let plan = plan.and_then(|bytes| Planner::of_checkpoint(&bytes)).filter(|plan| plan.last_seq() == begin.seq);
    plan_file::remove_others(staging.dir(), begin.plan);
    plan.ok_or_else(|| OutputsError::LogDamaged { staging: staging.path().to_owned() })
}

/// Feeds the records, and between them what was logged, as it came, to the plan with which the log
/// begins.
fn replay(
    reader: &mut JournalReader,
    limit: u64,
    mut planner: Planner,
    entries: &[LogEntry],
) -> std::io::Result<Replayed> {
    let mut last = LastRecords { entry: planner.last_seq(), node_news: planner.last_news() };
    planner.begin_replay();
    let mut opened = HashSet::new();
    let mut logged = entries.iter().filter(|entry| entry.begin().is_none()).peekable();
    let apply = |planner: &mut Planner, entry: &LogEntry| {
        let is_skip = entry.checked_kind() == Some(Kind::Skip);
        // A step that was left out has not changed the PFS.
        if !is_skip {
            planner.replay_leaves(entry.place(), entry.id, entry.found());
        }
        planner.replay_done(entry.place(), entry.id, is_skip);
    };
    let (end, damage) = reader.read_past_damage(limit, |record| {
        while let Some(entry) = logged.next_if(|entry| entry.read < record.header.seq) {
            apply(&mut planner, entry);
        }
        planner.record(record);
        last.node_news = last.node_news.max(record.header.node_news);
        if record.op == Op::Open {
            opened.insert(record.header.id);
        } else {
            last.entry = last.entry.max(record.header.seq);
        }
    })?;
    for entry in logged {
        apply(&mut planner, entry);
    }
    planner.end_replay();
    Ok(Replayed { planner, end, damage, opened, last })
}

/// Writes records that say nothing where a journal was damaged: what its lost records leave is
/// settled, and a next look finds no damage. Their number is that of a record before them.
fn fill_damage(journal: &Path, damage: &[Damage]) -> Result<(), OutputsError> {
    let fill = || -> std::io::Result<()> {
        let file = std::fs::File::options().write(true).open(journal)?;
        for Damage { from, to } in damage {
            let mut at = *from;
            while at < *to {
                let rest = (*to - at) as usize;
                let len = if rest > MAX_BYTES { (rest - MIN_FILLER).min(MAX_BYTES) } else { rest };
                let mut out = [0; MAX_BYTES];
                let nothing = record::write_filler(&mut out, len);
                let nothing = nothing.ok_or(std::io::ErrorKind::InvalidData)?;
                file.write_all_at(nothing, at)?;
                at += nothing.len() as u64;
            }
        }
        file.sync_data()
    };
    if damage.is_empty() { Ok(()) } else { fill().map_err(OutputsError::io("write", journal)) }
}

fn rebuild_tree(
    staging: &StagingDir,
    planner: &Planner,
    entries: &[LogEntry],
    files: &[Staged],
) -> Result<(), OutputsError> {
    let published: HashMap<u64, &LogEntry> =
        entries.iter().filter(|e| e.checked_kind() == Some(Kind::File)).map(|e| (e.id, e)).collect();
    let exists: HashSet<u64> = files.iter().map(|file| file.id).collect();
    // A link of a file that was published, but whose link the agent had no time to change.
    let clean = |link: &Link<'_>| match link {
        Link::Clean(clean) if exists.contains(&clean.file.id) => Some(clean_text(clean).to_vec()),
        Link::File(file) if exists.contains(&file.id) && planner.file(file.id).is_none() => {
            let entry = published.get(&file.id)?;
            let is_same = (entry.dev, entry.ino) == (file.dev, file.ino);
            let (size, mtime_ns, ctime_ns) = (entry.size, entry.mtime_ns, entry.ctime_ns);
            is_same.then(|| clean_text(&Clean { file: *file, size, mtime_ns, ctime_ns }).to_vec())
        }
        _ => None,
    };
    let tree = staging.tree();
    tree.rebuild(planner.names(), clean).map_err(OutputsError::io("write the overlay of", staging.path()))
}

fn clean_copies(staging: &StagingDir) -> Result<Vec<CleanCopy>, OutputsError> {
    let links = staging.tree().links().map_err(OutputsError::io("read the overlay of", staging.path()))?;
    let of_link = |(name, text): (Vec<u8>, Vec<u8>)| match Link::parse(&text) {
        Some(Link::Clean(clean)) => Some(CleanCopy { name, clean }),
        _ => None,
    };
    let mut clean: Vec<CleanCopy> = links.into_iter().filter_map(of_link).collect();
    clean.sort_by_key(|copy| copy.clean.file.id);
    Ok(clean)
}

/// The staging directories of a tier, given its directory `outputs`.
#[must_use]
pub fn staging_dirs(outputs: &std::path::Path) -> Vec<std::path::PathBuf> {
    let Ok(dir) = std::fs::read_dir(outputs) else { return Vec::new() };
    let paths = dir.filter_map(Result::ok).map(|entry| entry.path());
    let mut found: Vec<_> = paths.filter(|path| read_info(path).is_ok()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use monarch_abi::outputs::record::Header;

    #[test]
    fn damage_of_any_length_is_filled_with_records_that_say_nothing() {
        for len in [64, 72, 8192, 8200, 8256, 30_000] {
            let file = tempfile::NamedTempFile::new().unwrap();
            let mut out = [0; MAX_BYTES];
            let of = |seq| Header { seq, ..Header::default() };
            let first = record::write(&mut out, of(1), Op::Unlink, b"a", b"").unwrap().to_vec();
            let last = record::write(&mut out, of(9), Op::Unlink, b"b", b"").unwrap();
            let bytes = [&first[..], &vec![0xaa; len], last].concat();
            std::fs::write(file.path(), &bytes).unwrap();
            let read = || {
                let mut seqs = Vec::new();
                let mut reader = JournalReader::new(file.reopen().unwrap());
                let (end, damage) = reader.read_past_damage(bytes.len() as u64, |r| seqs.push(r.header.seq)).unwrap();
                assert_eq!(end, End::Limit);
                seqs.retain(|seq| *seq > 0);
                (seqs, damage)
            };
            let (seqs, damage) = read();
            assert_eq!((seqs, damage.len()), (vec![1, 9], 1));
            fill_damage(file.path(), &damage).unwrap();
            assert_eq!(read(), (vec![1, 9], Vec::new()), "{len} bytes");
        }
    }
}
