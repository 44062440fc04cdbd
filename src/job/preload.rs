//! Programs that load no preload library: static and 32-bit ones, and those that run with the
//! rights of another user.

use super::sanitizer::find;
use monarch_core::shown::ShowPath;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Bits of a mode: set user ID and set group ID.
const SET_ID: u32 = 0o6000;
/// Most bytes that are read of a program's table of segments.
const MAX_TABLE_BYTES: usize = 1 << 16;

/// Returns why the program of this command, or the interpreter in its first line, loads no preload
/// library, if that is known. What it starts is not looked at; a program that is not found is left
/// to the start of the command, which reports it.
pub(crate) fn obstacle(command: &[OsString]) -> Option<String> {
    let program = find(command.first()?.as_bytes())?;
    let mut first = [0; 256];
    let read = File::open(&program).and_then(|mut f| f.read(&mut first)).ok()?;
    let interpreter = first[..read].strip_prefix(b"#!").and_then(|line| {
        let line = line.split(|&c| c == b'\n').next()?;
        find(line.split(u8::is_ascii_whitespace).find(|w| !w.is_empty())?)
    });
    let program = interpreter.unwrap_or(program);
    Some(format!("{} is {}, which loads no preload library", program.shown(), defect(&program)?))
}

/// Returns what about a program keeps the loader from preloading.
fn defect(program: &Path) -> Option<&'static str> {
    let file = File::open(program).ok()?;
    if file.metadata().ok()?.mode() & SET_ID != 0 {
        return Some("a setuid or setgid program");
    }
    // ELF of this machine's byte order.
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    if head.starts_with(b"\x7fELF\x01") {
        return Some("a 32-bit program");
    }
    if !head.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let half = |at: usize| Some(usize::from(u16::from_ne_bytes(*head.get(at..)?.first_chunk()?)));
    let (entry, count) = (half(54)?, half(56)?);
    let table = u64::from_ne_bytes(*head.get(32..)?.first_chunk()?);
    let mut headers = vec![0; (entry * count).min(MAX_TABLE_BYTES)];
    file.read_exact_at(&mut headers, table).ok()?;
    let is_dynamic = headers
        .chunks_exact(entry.max(4))
        .filter_map(<[u8]>::first_chunk::<4>)
        .any(|kind| u32::from_ne_bytes(*kind) == libc::PT_INTERP);
    (!is_dynamic).then_some("a static program")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn programs_with_a_loader_and_scripts_are_no_obstacle() {
        let script = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(script.path(), format!("#!/bin/sh\n{}", " ".repeat(80))).unwrap();
        for program in ["/bin/sh".into(), "/no/such/program".into(), script.path().as_os_str().to_owned()] {
            assert_eq!(obstacle(&[program]), None);
        }
    }

    #[test]
    fn programs_that_load_no_library_are_named() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        // A 64-bit header with an empty table of segments, as far as it is read.
        let mut head = [0; 64];
        head[..5].copy_from_slice(b"\x7fELF\x02");
        file.write_all(&head).unwrap();
        assert_eq!(defect(file.path()), Some("a static program"));
        head[4] = 1;
        file.as_file().write_all_at(&head, 0).unwrap();
        assert_eq!(defect(file.path()), Some("a 32-bit program"));
    }
}
