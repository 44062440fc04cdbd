//! What `explain` says when no agent is running: whether the next job finds a copy.

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO;
use crate::{kept, say};
use anyhow::Result;
use monarch_core::kept::{KeptCopies, KeptError, KeptFile};
use monarch_core::shown::ShowPath;
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What is said of a path.
#[derive(Debug, Serialize)]
struct Answer {
    #[serde(serialize_with = "monarch_core::shown::serial::path")]
    path: PathBuf,
    verdict: KeptVerdict,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "monarch_core::shown::serial::perhaps")]
    root: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "monarch_core::shown::serial::perhaps")]
    copy: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
enum KeptVerdict {
    /// There is a copy.
    Kept,
    /// There is none, or of an earlier version of the file.
    NotKept,
    /// Neither file nor directory, or a directory.
    NoFile,
    /// Below no root of an earlier job.
    Outside,
    /// There is no such file.
    Missing,
}

impl KeptVerdict {
    const fn sentence(self) -> &'static str {
        match self {
            Self::Kept => "no agent is running; the next job with these tiers opens the copy that an earlier one left",
            Self::NotKept => "no agent is running, and no copy of its present version is kept: the next job makes one",
            Self::NoFile => {
                "no agent is running, and this is no file; `monarch du` counts what is kept below a directory"
            }
            Self::Outside => "no agent is running, and no earlier job was served this path from these tiers",
            Self::Missing => "no agent is running, and the parallel file system has no such file",
        }
    }
}

pub(super) fn main(config: &ConfigArgs, paths: &[PathBuf], json: bool) -> Result<ExitCode> {
    let (limits, copies) = match config.limits().and_then(|limits| Ok((limits, kept::need(config)?))) {
        Ok(both) => both,
        Err(code) => return Ok(code),
    };
    let mut answers = Vec::new();
    for path in paths {
        let (mut file, is_dir) = (None, path.is_dir());
        let asked = if is_dir { Ok(()) } else { kept::each_file(&copies, path, &limits, |found| file = Some(found)) };
        answers.push(answer(&copies, path, asked.map(|()| file))?);
    }
    if json {
        say::json(&answers)?;
    } else {
        let text: Vec<String> = answers.iter().map(|a| text(a, &copies)).collect();
        say::out(format_args!("{}", text.join("\n")))?;
    }
    let all_kept = answers.iter().all(|a| a.verdict == KeptVerdict::Kept);
    Ok(if all_kept { ExitCode::SUCCESS } else { ExitCode::from(EX_NO) })
}

fn answer(copies: &KeptCopies, path: &Path, found: Result<Option<KeptFile>, KeptError>) -> Result<Answer> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let root = copies.root_of(&real).map(Path::to_owned);
    let verdict = |verdict| Answer { path: path.to_owned(), verdict, root: root.clone(), copy: None };
    Ok(match found {
        Ok(Some(KeptFile { copy: Some(kept), .. })) => {
            let rel = kept.copy.path();
            let copy = copies.tiers.get(kept.tier).map(|t| t.view.path().join(OsStr::from_bytes(rel.as_bytes())));
            Answer { copy, ..verdict(KeptVerdict::Kept) }
        }
        Ok(Some(_)) => verdict(KeptVerdict::NotKept),
        Ok(None) if root.is_none() => verdict(KeptVerdict::Outside),
        Ok(None) => verdict(KeptVerdict::NoFile),
        Err(KeptError::Outside { .. }) => verdict(KeptVerdict::Outside),
        Err(KeptError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            verdict(KeptVerdict::Missing)
        }
        Err(e) => return Err(e.into()),
    })
}

fn text(answer: &Answer, copies: &KeptCopies) -> String {
    // Writing to a string does not fail.
    let mut out = format!("{}\n  {}\n", answer.path.shown(), answer.verdict.sentence());
    if let Some(root) = &answer.root {
        let _ = writeln!(out, "  root     {}", root.shown());
    }
    if let Some(copy) = &answer.copy {
        let _ = writeln!(out, "  copy     {}", copy.shown());
    }
    if answer.verdict == KeptVerdict::Outside {
        for root in copies.roots() {
            let _ = writeln!(out, "  a root   {}", root.shown());
        }
    }
    out
}
