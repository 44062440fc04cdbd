//! Recorded runs: traces of `monarch run --trace`, or tables:
//! `time_s,stream,path-or-id,size[,epoch]`, an open a line, with or without a heading. The third
//! column names the file. If all files are numbers, they are listed by number, otherwise by name.

use crate::say;
use anyhow::{Context, Result, anyhow, ensure};
use monarch_core::shown::ShowPath;
use monarch_core::trace::TraceReader;
use monarch_policies::sim::{Workload, recorded_workload};
use monarch_policies::{Access, EpochEvent, Epochs, FileKey, Served};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

/// A line of the table.
struct Line<'a> {
    at: Duration,
    stream: &'a str,
    file: &'a str,
    size: u64,
    epoch: u32,
}

/// The run that a file describes.
pub(super) fn read(path: &Path) -> Result<Workload> {
    if path.extension().is_none_or(|e| e != "csv") {
        return recorded(path);
    }
    let text = std::fs::read_to_string(path).with_context(|| path.shown().to_string())?;
    parse(&text).with_context(|| path.shown().to_string())
}

/// The run that a trace holds. Files are in the order of listings; epochs are found as the agent
/// finds them.
fn recorded(path: &Path) -> Result<Workload> {
    let mut reader = TraceReader::open(path)?;
    let mut accesses: Vec<Access> = reader.by_ref().collect();
    ensure!(!accesses.is_empty(), "trace {} holds no access", path.shown());
    if reader.lost() > 0 {
        say::warn(format_args!("{}: {} opens are missing, which were too many at a time", path.shown(), reader.lost()));
    }
    let mut listed: Vec<(u32, &[u8], FileKey)> =
        accesses.iter().filter_map(|a| reader.file(a.file).map(|f| (f.root, f.path.as_slice(), a.file))).collect();
    listed.sort_unstable();
    listed.dedup();
    let keys: HashMap<FileKey, FileKey> = (0..).zip(&listed).map(|(n, (_, _, key))| (*key, FileKey(n))).collect();
    accesses.iter_mut().for_each(|a| a.file = keys.get(&a.file).copied().unwrap_or(a.file));
    let (mut epochs, mut begins, mut found) = (vec![0], 0, Epochs::default());
    for (at, access) in accesses.iter().enumerate() {
        match found.access(access.file) {
            EpochEvent::Perhaps => begins = at,
            EpochEvent::Begun(_) => epochs.push(if begins > epochs.last().copied().unwrap_or(0) { begins } else { at }),
            EpochEvent::Same | EpochEvent::Not => {}
        }
    }
    Ok(recorded_workload(&accesses, &epochs))
}

fn parse(text: &str) -> Result<Workload> {
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, l)| !l.trim().is_empty()) {
        match line_of(line) {
            Some(line) => lines.push(line),
            None if number == 1 => {}
            None => return Err(anyhow!("line {number}: `{line}` is not time_s,stream,path-or-id,size[,epoch]")),
        }
    }
    ensure!(!lines.is_empty(), "it holds no access");
    lines.sort_by_key(|l| (l.epoch, l.at));
    let numbered = lines.iter().all(|l| l.file.parse::<u64>().is_ok());
    let keys = keys(&lines, numbered);
    let streams: BTreeMap<&str, u16> =
        lines.iter().map(|l| l.stream).collect::<BTreeSet<_>>().into_iter().zip(0..).collect();
    let access = |l: &Line<'_>| Access {
        file: keys.get(l.file).copied().unwrap_or(FileKey(0)),
        size: l.size,
        at: l.at,
        stream: streams.get(l.stream).copied().unwrap_or(0),
        served: Served::Pfs,
    };
    let accesses: Vec<Access> = lines.iter().map(access).collect();
    let begins = |at: &usize| *at == 0 || lines[at - 1].epoch != lines[*at].epoch;
    let epochs: Vec<usize> = (0..lines.len()).filter(begins).collect();
    Ok(recorded_workload(&accesses, &epochs))
}

fn keys<'a>(lines: &[Line<'a>], numbered: bool) -> BTreeMap<&'a str, FileKey> {
    let files: BTreeSet<&str> = lines.iter().map(|l| l.file).collect();
    let key = |(at, file): (u64, &'a str)| (file, FileKey(if numbered { file.parse().unwrap_or(at) } else { at }));
    (0..).zip(files).map(key).collect()
}

/// Fields from both ends, so that paths may hold commas.
fn line_of(line: &str) -> Option<Line<'_>> {
    let (at, rest) = line.split_once(',')?;
    let (stream, rest) = rest.split_once(',')?;
    let at = Duration::try_from_secs_f64(at.trim().parse().ok()?).ok()?;
    let (rest, last) = rest.rsplit_once(',')?;
    let (file, size, epoch) = match rest.rsplit_once(',') {
        Some((file, size)) if size.trim().parse::<u64>().is_ok() => (file, size, last.trim().parse().ok()?),
        _ => (rest, last, 1),
    };
    Some(Line { at, stream: stream.trim(), file: file.trim(), size: size.trim().parse().ok()?, epoch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_becomes_a_workload() {
        let work = parse("time_s,stream,file,size,epoch\n0.0,7,b/x,10,1\n0.5,8,a,20,1\n1,7,a,20,2\n2,8,b/x,10,2\n")
            .expect("a trace");
        assert_eq!((work.files(), work.epochs(), work.ranks(), work.bytes(), work.accesses(1)), (2, 2, 2, 30, 4));
        let work = parse("0.0,1,with,comma,10\n1,1,9,10\n").expect("a trace");
        assert_eq!((work.files(), work.epochs(), work.bytes()), (2, 1, 20));
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let why = |text| format!("{:#}", parse(text).expect_err("wrong"));
        assert!(why("0,1,f,10\n0,1,f\n").contains("line 2: `0,1,f`"));
        assert!(why("0,1,f,10\n-1,1,f,10\n").contains("line 2"));
        assert!(why("time_s,stream,file,size\n").contains("no access"));
    }
}
