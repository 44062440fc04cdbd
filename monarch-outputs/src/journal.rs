//! Reads the journal of a staging directory.

use monarch_abi::outputs::record::{self, MAX_BYTES, Record};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;

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
            if self.at == before || (!rest.is_empty() && !is_cut) {
                return Ok(End::Torn);
            }
        }
        Ok(End::Limit)
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
