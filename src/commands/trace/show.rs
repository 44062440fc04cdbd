//! `monarch trace show`: accesses, line by line.

use monarch_core::shown::{self, ShowPath};
use monarch_core::trace::TraceReader;
use monarch_policies::{Access, Served};
use serde_json::json;
use std::io::{self, Read, Write};
use std::path::PathBuf;

pub(super) fn text<R: Read>(reader: &mut TraceReader<R>, limit: u64, to: &mut impl Write) -> io::Result<()> {
    each(reader, limit, |a, path| {
        let (time, served) = (a.at.as_secs_f64(), name(a.served));
        writeln!(to, "{time:>12.4} {:>5} {served:<6} {:>14} {}", a.stream, a.size, path.shown())
    })
}

pub(super) fn json<R: Read>(reader: &mut TraceReader<R>, limit: u64, to: &mut impl Write) -> io::Result<()> {
    each(reader, limit, |a, path| {
        let object = json!({"time_s": a.at.as_secs_f64(), "stream": a.stream, "served": name(a.served),
            "size": a.size, "path": path.to_string_lossy(), "file": a.file.0});
        writeln!(to, "{}", shown::json(&object.to_string()))
    })
}

fn each<R: Read>(
    reader: &mut TraceReader<R>,
    limit: u64,
    mut tell: impl FnMut(Access, PathBuf) -> io::Result<()>,
) -> io::Result<()> {
    let mut left = limit;
    while left > 0 {
        let Some(a) = reader.next() else { break };
        tell(a, reader.file(a.file).map(|f| reader.path(f)).unwrap_or_default())?;
        left -= 1;
    }
    Ok(())
}

fn name(served: Served) -> &'static str {
    match served {
        Served::Tier => "tier",
        Served::Waited => "waited",
        Served::Pfs => "pfs",
    }
}
