//! Converts traces from and to CSV files, so that other tools can make and read them.
//!
//! `time_s,stream,path,size,served`, with a header line; the columns may come in any order, and
//! `served` (`tier`, `waited`, `pfs`) may be missing: then it is `pfs`. Fields with commas, quotes
//! or line breaks stand in quotes, as in RFC 4180. Paths are bytes, not text. (The crate `csv`
//! accepts lines of any length and a quote that is not closed; here both are errors that name their
//! line.)

use super::{TraceError, TraceHeader, TraceReader, TraceWriter};
use monarch_policies::{Access, FileKey, Served};
use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Longest line, in bytes.
const MAX_LINE_BYTES: u64 = 64 << 10;
const COLUMNS: [&str; 5] = ["time_s", "stream", "path", "size", "served"];
const HEADER_REMEDY: &str = "begin the file with: time_s,stream,path,size,served";

/// Writes up to `limit` accesses of a trace, with their times since the beginning of the trace.
///
/// # Errors
/// When it cannot be written.
pub fn export<R: Read>(reader: &mut TraceReader<R>, limit: u64, to: &mut impl Write) -> io::Result<()> {
    writeln!(to, "{}", COLUMNS.join(","))?;
    let mut left = limit;
    while left > 0 {
        let Some(a) = reader.next() else { break };
        let path = reader.file(a.file).map(|f| reader.path(f)).unwrap_or_default();
        write!(to, "{}.{:04},{},", a.at.as_secs(), a.at.subsec_micros() / 100, a.stream)?;
        quote(path.as_os_str().as_bytes(), to)?;
        writeln!(to, ",{},{}", a.size, name(a.served))?;
        left -= 1;
    }
    Ok(())
}

/// Makes a trace from a CSV file. Returns the number of accesses.
///
/// # Errors
/// When the CSV file cannot be read or has a mistake, which the error names with its line; when the
/// trace cannot be written.
pub fn import(csv: impl BufRead, csv_path: &Path, output: &Path, header: &TraceHeader) -> Result<u64, TraceError> {
    let mut lines = Lines { from: csv, path: csv_path, line: 0, next: 1 };
    let columns = lines.columns()?;
    let done = TraceWriter::create(output, header).and_then(|writer| lines.write(&columns, writer));
    if done.is_err() {
        // Readers would take half a trace for a whole job.
        let _ = std::fs::remove_file(output);
    }
    done
}

/// Positions of the columns.
type Columns = [Option<usize>; 5];

struct Lines<'a, B> {
    from: B,
    path: &'a Path,
    /// The line in which the present record begins.
    line: u64,
    next: u64,
}

impl<B: BufRead> Lines<'_, B> {
    fn wrong(&self, what: String, remedy: &'static str) -> TraceError {
        TraceError::Csv { path: self.path.to_owned(), line: self.line, what, remedy }
    }

    fn columns(&mut self) -> Result<Columns, TraceError> {
        let fields = self.fields()?.unwrap_or_default();
        let names: Vec<String> = fields
            .iter()
            .map(|f| String::from_utf8_lossy(f).trim_start_matches('\u{feff}').trim().to_owned())
            .collect();
        let columns = COLUMNS.map(|name| names.iter().position(|n| n == name));
        for (name, at) in COLUMNS.iter().zip(&columns).take(4) {
            if at.is_none() {
                self.line = self.line.max(1);
                return Err(self.wrong(format!("there is no column {name}"), HEADER_REMEDY));
            }
        }
        Ok(columns)
    }

    fn write(&mut self, columns: &Columns, mut writer: TraceWriter) -> Result<u64, TraceError> {
        let mut known = HashMap::<Vec<u8>, u64>::new();
        let mut count = 0;
        while let Some(fields) = self.fields()? {
            if fields.len() == 1 && fields[0].is_empty() {
                continue;
            }
            let (mut access, path) = self.access(columns, &fields)?;
            let next = known.len() as u64;
            access.file = FileKey(*known.entry(path.clone()).or_insert(next));
            writer.add(&access, || path)?;
            count += 1;
        }
        writer.finish()?;
        Ok(count)
    }

    fn access(&self, columns: &Columns, fields: &[Vec<u8>]) -> Result<(Access, Vec<u8>), TraceError> {
        let at = |n: usize| columns[n].and_then(|c| fields.get(c)).map(Vec::as_slice);
        let text = |n: usize| at(n).map(|f| String::from_utf8_lossy(f).trim().to_owned()).unwrap_or_default();
        let wrong = |n: usize, remedy| self.wrong(format!("{} cannot be {:?}", COLUMNS[n], text(n)), remedy);
        let seconds = text(0).parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
        let seconds = seconds.ok_or_else(|| wrong(0, "give seconds such as 12.5, not below 0"))?;
        let stream = text(1).parse::<u16>().map_err(|_| wrong(1, "give a number up to 65535 for the process"))?;
        let path = at(2).filter(|p| !p.is_empty() && p.len() <= 4096 && !p.contains(&0));
        let path = path.ok_or_else(|| wrong(2, "give a path of 1 to 4096 bytes, in quotes if it has commas"))?;
        let size = text(3).parse::<u64>().map_err(|_| wrong(3, "give whole bytes such as 110592"))?;
        let served = match text(4).as_str() {
            "tier" => Served::Tier,
            "waited" => Served::Waited,
            "pfs" | "" => Served::Pfs,
            _ => return Err(wrong(4, "give one of tier, waited, pfs, or leave it out")),
        };
        Ok((Access { file: FileKey(0), size, at: seconds, stream, served }, path.to_vec()))
    }

    /// Returns the fields of the next record; `None` at the end. A record takes several lines when
    /// a field in quotes has line breaks.
    fn fields(&mut self) -> Result<Option<Vec<Vec<u8>>>, TraceError> {
        let mut text = Vec::new();
        self.line = self.next;
        loop {
            let len = text.len();
            let left = MAX_LINE_BYTES.saturating_sub(len as u64);
            (&mut self.from).take(left).read_until(b'\n', &mut text).map_err(TraceError::io(self.path))?;
            if text.is_empty() {
                return Ok(None);
            }
            if text.len() as u64 >= MAX_LINE_BYTES {
                return Err(self.wrong(format!("it is longer than {MAX_LINE_BYTES} bytes"), "is a quote missing?"));
            }
            self.next += 1;
            if text.iter().filter(|b| **b == b'"').count() % 2 == 0 {
                return Ok(Some(split(&text)));
            }
            if text.len() == len {
                return Err(self.wrong("a quote is not closed".to_owned(), "write a quote within a field twice"));
            }
        }
    }
}

/// Splits a record into fields.
fn split(text: &[u8]) -> Vec<Vec<u8>> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    let (mut fields, mut field, mut quoted) = (Vec::new(), Vec::new(), false);
    let mut rest = text.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        match byte {
            b'"' if quoted && rest.next_if_eq(&b'"').is_some() => field.push(b'"'),
            b'"' => quoted = !quoted,
            b',' if !quoted => fields.push(std::mem::take(&mut field)),
            _ => field.push(byte),
        }
    }
    fields.push(field);
    fields
}

fn quote(field: &[u8], to: &mut impl Write) -> io::Result<()> {
    if !field.iter().any(|b| b",\"\r\n".contains(b)) {
        return to.write_all(field);
    }
    let mut out = vec![b'"'];
    for byte in field {
        out.extend(std::iter::repeat_n(*byte, 1 + usize::from(*byte == b'"')));
    }
    out.push(b'"');
    to.write_all(&out)
}

fn name(served: Served) -> &'static str {
    match served {
        Served::Tier => "tier",
        Served::Waited => "waited",
        Served::Pfs => "pfs",
    }
}
