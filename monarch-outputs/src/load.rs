//! Takes in what an earlier agent has left in a staging directory: journal, log, data, overlay.

use crate::errors::OutputsError;
use crate::journal::{End, JournalReader};
use crate::plan::Planner;
use crate::published::{Kind, LogEntry, PublishedLog};
use crate::staging::{StagingDir, read_info};
use monarch_abi::outputs::names::{Clean, Link, Staged, clean_text};
use monarch_abi::outputs::record::Op;
use monarch_abi::outputs::{JOURNAL, PUBLISHED};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

/// Staged files that no record names are kept for so long, in seconds: a process may be about to
/// append the record.
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
    /// Clean copies, oldest first.
    pub clean: Vec<CleanCopy>,
}

/// Reads journal and log, and makes state and overlay agree with them. `is_salvage`: what lies
/// behind a damaged record is given up.
///
/// # Errors
/// [`OutputsError`].
pub fn load(staging: &StagingDir, is_salvage: bool) -> Result<Loaded, OutputsError> {
    let log_path = staging.path().join(PUBLISHED);
    let lock = staging.lock_journal()?;
    let (mut log, entries) = PublishedLog::open(staging.dir()).map_err(OutputsError::io("read", &log_path))?;
    let state = staging.state();
    let of_this_boot = staging.is_of_this_boot();
    if entries.is_empty() && staging.journal_len() == 0 {
        log.begin_again(staging.dir(), 0, 1).map_err(OutputsError::io("write", &log_path))?;
    }
    let begin = entries.first().filter(|entry| entry.checked_kind() == Some(Kind::Begin)).copied().unwrap_or_default();
    let mut reader = staging.reader()?;
    let limit = if of_this_boot { state.tail.load(Ordering::Acquire) } else { staging.journal_len() };
    let mut last = LastRecords { entry: begin.seq, node_news: 0 };
    let (planner, end) = replay(&mut reader, limit, begin.seq, &entries, &mut last)
        .map_err(|source| OutputsError::Io { what: "read", path: staging.path().join(JOURNAL), source })?;
    if end == End::Torn && of_this_boot && !is_salvage {
        return Err(OutputsError::Damaged { path: staging.path().join(JOURNAL), what: "a record below its end" });
    }
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
    let ids = files.iter().map(|file| file.id + 1);
    let logged = entries.iter().filter(|e| e.checked_kind() != Some(Kind::Begin)).map(|entry| entry.id + 1);
    let next = ids.chain(logged).chain([begin.id, planner.max_id() + 1, 1]).max().unwrap_or(1);
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
    remove_orphans(staging, &planner, &clean, &files);
    staging.write_info()?;
    drop(lock);
    Ok(Loaded { planner, reader, log, clean })
}

/// What the state says of the records.
struct LastRecords {
    /// The last one that has a place in the order.
    entry: u64,
    /// The most news of other nodes that one has.
    node_news: u32,
}

/// Feeds the records, and between them what was logged, as it came.
fn replay(
    reader: &mut JournalReader,
    limit: u64,
    base: u64,
    entries: &[LogEntry],
    last: &mut LastRecords,
) -> std::io::Result<(Planner, End)> {
    let mut planner = Planner::after(base);
    planner.begin_replay();
    let mut logged = entries.iter().filter(|entry| entry.checked_kind() != Some(Kind::Begin)).peekable();
    let apply = |planner: &mut Planner, entry: &LogEntry| {
        planner.replay_done(entry.place(), entry.id, entry.checked_kind() == Some(Kind::Skip));
    };
    let end = reader.read(limit, |record| {
        while let Some(entry) = logged.next_if(|entry| entry.read < record.header.seq) {
            apply(&mut planner, entry);
        }
        planner.record(record);
        last.node_news = last.node_news.max(record.header.node_news);
        if record.op != Op::Open {
            last.entry = last.entry.max(record.header.seq);
        }
    })?;
    for entry in logged {
        apply(&mut planner, entry);
    }
    planner.end_replay();
    Ok((planner, end))
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

/// Removes staged files that neither a record nor a link names.
fn remove_orphans(staging: &StagingDir, planner: &Planner, clean: &[CleanCopy], files: &[Staged]) {
    let kept: HashSet<u64> = clean.iter().map(|copy| copy.clean.file.id).collect();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_secs() as i64);
    for file in files {
        if kept.contains(&file.id) || planner.file(file.id).is_some() {
            continue;
        }
        let is_old = staging.stat_data(file).is_ok_and(|st| now - st.st_ctime > ORPHAN_AGE_S);
        if is_old || file.id <= planner.max_id() || !staging.is_of_this_boot() {
            staging.remove_data(file);
        }
    }
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
