//! Programs that load no preload library: statically linked ones, and those that run with the
//! rights of another user or with capabilities of their own.

use super::sanitizer::find;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Bits of a mode: set user ID and set group ID.
const SET_ID: u32 = 0o6000;

/// Returns why the program of this command loads no preload library, if that is known. Programs
/// that it starts are not looked at.
pub(super) fn obstacle(command: &[OsString]) -> Option<String> {
    let program = find(command.first()?.as_bytes())?;
    let shown = program.to_string_lossy().into_owned();
    let mode = std::fs::metadata(&program).ok()?.mode();
    if mode & SET_ID != 0 {
        return Some(format!("{shown} is setuid or setgid and loads no preload library"));
    }
    is_static(&program)?.then(|| format!("{shown} is linked statically and loads no preload library"))
}

/// Whether a 64-bit ELF program of this machine's byte order names no dynamic loader. `None`:
/// another kind of file.
fn is_static(program: &Path) -> Option<bool> {
    let file = File::open(program).ok()?;
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    if !head.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let at = u64::from_ne_bytes(*head.get(32..)?.first_chunk()?);
    let size = u16::from_ne_bytes(*head.get(54..)?.first_chunk()?);
    let number = u16::from_ne_bytes(*head.get(56..)?.first_chunk()?);
    for n in 0..number {
        let mut kind = [0; 4];
        file.read_exact_at(&mut kind, at + u64::from(n) * u64::from(size)).ok()?;
        if u32::from_ne_bytes(kind) == libc::PT_INTERP {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_a_loader_and_scripts_are_no_obstacle() {
        assert_eq!(is_static(Path::new("/bin/sh")), Some(false));
        let script = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(script.path(), format!("#!/bin/sh\n{}", " ".repeat(80))).unwrap();
        assert_eq!(is_static(script.path()), None);
        assert_eq!(obstacle(&["/bin/sh".into()]), None);
    }

    #[test]
    fn an_elf_file_without_a_loader_is_static() {
        let program = tempfile::NamedTempFile::new().unwrap();
        let mut head = [0u8; 120];
        head[..5].copy_from_slice(b"\x7fELF\x02");
        head[32] = 64;
        (head[54], head[56], head[64]) = (56, 1, 1);
        std::fs::write(program.path(), head).unwrap();
        assert_eq!(is_static(program.path()), Some(true));
    }
}
