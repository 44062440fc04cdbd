//! Programs built with AddressSanitizer as a shared library (gcc's default; clang's
//! `-shared-libasan`).
//!
//! The runtime of AddressSanitizer ends a program when another library, such as the preload
//! library, is loaded before the runtime. Here the order does not matter: the preload library calls
//! the next definition of each function, so that the runtime still sees every call, and the memory
//! functions stay the program's own. `verify_asan_link_order=0` in ASAN_OPTIONS turns the check
//! off. It is set only where the command, a word of it or a word of a shell's `-c` names such a
//! program.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The variable with the runtime's options.
const OPTIONS: &str = "ASAN_OPTIONS";
/// The option.
const ORDER: &str = "verify_asan_link_order";
/// Most words of a command that are looked at.
const MAX_WORDS: usize = 64;
/// Most needed libraries of a program that are looked at.
const MAX_NEEDED_LIBRARIES: usize = 4096;
/// Most bytes read of each of a program's tables.
const MAX_TABLE_BYTES: u64 = 1 << 20;

/// Returns the variable that the environment of this command needs.
pub(super) fn environment(command: &[OsString]) -> Option<(&'static str, OsString)> {
    let now = std::env::var_os(OPTIONS).unwrap_or_default();
    let is_said = now.as_bytes().windows(ORDER.len()).any(|w| w == ORDER.as_bytes());
    if is_said || !words(command).take(MAX_WORDS).any(|word| find(word).is_some_and(|p| needs_runtime(&p))) {
        return None;
    }
    let mut options = now.into_vec();
    if !options.is_empty() {
        options.push(b':');
    }
    options.extend_from_slice(format!("{ORDER}=0").as_bytes());
    Some((OPTIONS, OsString::from_vec(options)))
}

/// Returns the words of a command, each split into words: it may be a line for a shell.
fn words(command: &[OsString]) -> impl Iterator<Item = &[u8]> {
    let is_between = |c: &u8| c.is_ascii_whitespace() || b";&|()'\"`=".contains(c);
    command.iter().flat_map(move |w| w.as_bytes().split(is_between)).filter(|w| !w.is_empty())
}

/// Returns the program that a word names, as a shell would find it.
pub(super) fn find(word: &[u8]) -> Option<PathBuf> {
    let is_program = |p: &Path| std::fs::metadata(p).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0);
    let path = Path::new(OsStr::from_bytes(word));
    if word.contains(&b'/') {
        return is_program(path).then(|| path.to_owned());
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(path)).find(|p| is_program(p))
}

/// Whether a program, or the interpreter in its first line, needs the runtime as a shared library.
fn needs_runtime(program: &Path) -> bool {
    let by_elf = |path: &Path| {
        File::open(path).ok().and_then(|f| needed(&f)).is_some_and(|libs| libs.iter().any(|l| is_runtime(l)))
    };
    let mut first = [0; 256];
    let read = File::open(program).and_then(|mut f| f.read(&mut first)).unwrap_or(0);
    match first[..read].strip_prefix(b"#!") {
        Some(line) => {
            let line = line.split(|&c| c == b'\n').next().unwrap_or_default();
            words(&[OsStr::from_bytes(line).to_owned()]).any(|w| find(w).is_some_and(|p| by_elf(&p)))
        }
        None => by_elf(program),
    }
}

fn is_runtime(library: &[u8]) -> bool {
    library.starts_with(b"libasan.so") || library.starts_with(b"libclang_rt.asan")
}

/// Returns the names of the libraries that a 64-bit program of this machine's byte order needs.
fn needed(file: &File) -> Option<Vec<Vec<u8>>> {
    let read = |at: u64, len: u64| -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len.min(MAX_TABLE_BYTES)).ok()?];
        file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    };
    let head = read(0, 64)?;
    if !head.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let (table, entry, count) = (word(&head, 32)?, half(&head, 54)?, half(&head, 56)?);
    let headers = read(table, u64::from(entry) * u64::from(count))?;
    // Type, offset in the file, address, length in the file.
    let parts: Vec<(u32, u64, u64, u64)> = headers
        .chunks_exact(usize::from(entry).max(56))
        .filter_map(|h| Some((u32::from_ne_bytes(*h.first_chunk()?), word(h, 8)?, word(h, 16)?, word(h, 32)?)))
        .collect();
    let (_, at, _, len) = *parts.iter().find(|(kind, ..)| *kind == libc::PT_DYNAMIC)?;
    let dynamic = read(at, len)?;
    let pairs = || dynamic.chunks_exact(16).map_while(|p| Some((word(p, 0)?, word(p, 8)?))).take_while(|p| p.0 != 0);
    let names = pairs().find(|(tag, _)| *tag == 5)?.1;
    let loaded = |(kind, _, from, len): &&(u32, u64, u64, u64)| {
        *kind == libc::PT_LOAD && (*from..from.saturating_add(*len)).contains(&names)
    };
    let (_, at, from, len) = *parts.iter().find(loaded)?;
    let strings = read(at + (names - from), len - (names - from))?;
    let name = |at: u64| Some(strings.get(usize::try_from(at).ok()?..)?.split(|&c| c == 0).next()?.to_vec());
    Some(pairs().filter(|(tag, _)| *tag == 1).filter_map(|(_, at)| name(at)).take(MAX_NEEDED_LIBRARIES).collect())
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_libraries_are_read_from_the_program() {
        let own = File::open(std::env::current_exe().unwrap()).unwrap();
        let libs = needed(&own).unwrap();
        assert!(libs.iter().any(|l| l.starts_with(b"libc.so")), "{libs:?}");
        assert!(!libs.iter().any(|l| is_runtime(l)));
        for (text, len) in [
            (b"\x7fELF\x02".to_vec(), 5),
            (vec![0xff; 4096], 4096),
            ([b"\x7fELF\x02".to_vec(), vec![0xff; 4091]].concat(), 4096),
        ] {
            let mut file = tempfile::tempfile().unwrap();
            std::io::Write::write_all(&mut file, &text).unwrap();
            assert!(text.len() == len && needed(&file).is_none());
        }
    }

    #[test]
    fn a_line_for_a_shell_is_taken_apart() {
        let command = ["sh", "-c", "cd /x && A=1 './prog' y|z"].map(OsString::from);
        let words: Vec<_> = words(&command).collect();
        assert_eq!(words, ["sh", "-c", "cd", "/x", "A", "1", "./prog", "y", "z"].map(str::as_bytes));
    }
}
