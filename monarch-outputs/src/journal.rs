//! Reads the journal of a staging directory.

use monarch_abi::outputs::record::{self, MAX_BYTES, Record};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// Records begin at multiples of so many bytes.
const ALIGNMENT: usize = 8;

/// Reads records in order, from where it was.
#[derive(Debug)]
pub struct JournalReader {
    file: File,
    at: u64,
}

/// How reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All bytes up to the limit were records.
    Limit,
    /// What follows is no record.
    Torn,
    /// What follows is a record of a newer version.
    Newer,
}

/// Bytes of a journal that are no record, with records behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where they begin.
    pub from: u64,
    /// Where the next record begins.
    pub to: u64,
}

impl JournalReader {
    /// Reads a journal from its begin.
    #[must_use]
    pub const fn new(file: File) -> Self {
        Self { file, at: 0 }
    }

    /// The offset of the next record.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.at
    }

    /// The journal was begun again.
    pub const fn rewind(&mut self) {
        self.at = 0;
    }

    /// Hands over the records up to byte `limit`.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn read(&mut self, limit: u64, mut each: impl FnMut(&Record<'_>)) -> io::Result<End> {
        let mut buffer = Vec::new();
        while self.at < limit {
            let want = usize::try_from(limit - self.at).unwrap_or(READ_BYTES).min(READ_BYTES);
            buffer.resize(want, 0);
            let got = read_up_to(&self.file, &mut buffer, self.at)?;
            let mut rest = &buffer[..got];
            let before = self.at;
            while let Some(record) = record::read(rest) {
                let len = record.header.len as usize;
                each(&record);
                self.at += len as u64;
                rest = &rest[len..];
            }
            // A record that the buffer has in part is read with the next bytes.
            let is_cut = rest.len() < MAX_BYTES && before + (got as u64) < limit && got == want;
            if record::is_of_newer_version(rest) {
                return Ok(End::Newer);
            }
            if self.at == before || (!rest.is_empty() && !is_cut) {
                return Ok(End::Torn);
            }
        }
        Ok(End::Limit)
    }

    /// Hands over the records up to byte `limit`, also those behind bytes that are no record: the
    /// next one is whole and has a higher number. Returns how reading ended, and what was passed
    /// over. [`End::Torn`]: no record is behind the reader's offset.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn read_past_damage(
        &mut self,
        limit: u64,
        mut each: impl FnMut(&Record<'_>),
    ) -> io::Result<(End, Vec<Damage>)> {
        let (mut last, mut damage) = (0, Vec::new());
        loop {
            let end = self.read(limit, |record| {
                last = last.max(record.header.seq);
                each(record);
            })?;
            let next = if end == End::Torn { self.next_record(limit, last)? } else { None };
            let Some(next) = next else { return Ok((end, damage)) };
            damage.push(Damage { from: self.at, to: next });
            self.at = next;
        }
    }

    /// Where the next whole record begins whose number is higher than `last`.
    fn next_record(&self, limit: u64, last: u64) -> io::Result<Option<u64>> {
        let (mut at, mut buffer) = (self.at + ALIGNMENT as u64, vec![0; READ_BYTES]);
        while at < limit {
            let want = usize::try_from(limit - at).unwrap_or(READ_BYTES).min(READ_BYTES);
            let got = read_up_to(&self.file, &mut buffer[..want], at)?;
            // A record that the buffer may have in part is looked at with the next bytes.
            let whole = if got == READ_BYTES { got - MAX_BYTES } else { got };
            let is_next = |from: &usize| record::whole(&buffer[*from..got]).is_some_and(|header| header.seq > last);
            if let Some(found) = (0..whole).step_by(ALIGNMENT).find(is_next) {
                return Ok(Some(at + found as u64));
            }
            if got < READ_BYTES {
                break;
            }
            at += whole as u64;
        }
        Ok(None)
    }
}

fn read_up_to(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use monarch_abi::outputs::record::{Header, Op, write};

    fn journal(records: u64) -> (tempfile::NamedTempFile, u64) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (mut out, mut at) = ([0; MAX_BYTES], 0);
        for seq in 1..=records {
            let name = vec![b'n'; (seq % 300) as usize];
            let bytes = write(&mut out, Header { seq, ..Header::default() }, Op::Unlink, &name, b"").unwrap();
            file.as_file().write_all_at(bytes, at).unwrap();
            at += bytes.len() as u64;
        }
        (file, at)
    }

    #[test]
    fn all_records_are_read_across_buffers() {
        let (file, len) = journal(5000);
        let mut reader = JournalReader::new(file.reopen().unwrap());
        let mut seqs = Vec::new();
        assert_eq!(reader.read(len, |r| seqs.push(r.header.seq)).unwrap(), End::Limit);
        assert_eq!(seqs, (1..=5000).collect::<Vec<_>>());
        assert_eq!(reader.offset(), len);
    }

    #[test]
    fn records_behind_damage_are_read_and_the_damage_is_told() {
        let (file, len) = journal(5000);
        let mut offsets = vec![0];
        let mut reader = JournalReader::new(file.reopen().unwrap());
        reader.read(len, |r| offsets.push(offsets.last().unwrap() + u64::from(r.header.len))).unwrap();
        for (at, bytes) in [(0, 1), (9, 1), (1000, 3), (2500, 2000), (4998, 1)] {
            let (file, _) = journal(5000);
            for offset in &offsets[at..at + bytes] {
                file.as_file().write_all_at(&[0xff], offset + 20).unwrap();
            }
            let (mut reader, mut seqs) = (JournalReader::new(file.reopen().unwrap()), Vec::new());
            let (end, damage) = reader.read_past_damage(len, |r| seqs.push(r.header.seq as usize)).unwrap();
            assert_eq!((end, reader.offset()), (End::Limit, len));
            assert_eq!(damage, [Damage { from: offsets[at], to: offsets[at + bytes] }]);
            assert_eq!(seqs, (1..=at).chain(at + bytes + 1..=5000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn zeros_and_older_records_behind_the_end_are_no_damage() {
        let (file, len) = journal(100);
        let mut old = [0; MAX_BYTES];
        let old = write(&mut old, Header { seq: 50, ..Header::default() }, Op::Unlink, b"x", b"").unwrap();
        file.as_file().write_all_at(old, len + 4096).unwrap();
        file.as_file().set_len(len + 600_000).unwrap();
        let mut reader = JournalReader::new(file.reopen().unwrap());
        assert_eq!(reader.read_past_damage(len + 600_000, |_| {}).unwrap(), (End::Torn, Vec::new()));
        assert_eq!(reader.offset(), len);
    }

    #[test]
    fn a_record_of_a_newer_version_ends_the_reading() {
        let (file, len) = journal(10);
        let mut out = [0; MAX_BYTES];
        let n = write(&mut out, Header { seq: 11, ..Header::default() }, Op::Unlink, b"x", b"").unwrap().len();
        out[40..42].copy_from_slice(&77u16.to_le_bytes());
        out[8..16].fill(0);
        let sum = xxhash_rust::xxh3::xxh3_64(&out[..n]);
        out[8..16].copy_from_slice(&sum.to_le_bytes());
        file.as_file().write_all_at(&out[..n], len).unwrap();
        let mut reader = JournalReader::new(file.reopen().unwrap());
        assert_eq!(reader.read_past_damage(len + n as u64, |_| {}).unwrap(), (End::Newer, Vec::new()));
        assert_eq!(reader.offset(), len);
    }

    #[test]
    fn a_torn_end_is_left_out() {
        let (file, len) = journal(100);
        for cut in [1, 7, 63, 64] {
            file.as_file().set_len(len - cut).unwrap();
            let mut reader = JournalReader::new(file.reopen().unwrap());
            let mut n = 0;
            assert_eq!(reader.read(len, |_| n += 1).unwrap(), End::Torn);
            assert_eq!(n, 99, "{cut}");
        }
    }
}
