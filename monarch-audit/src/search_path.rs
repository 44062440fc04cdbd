//! Directories in which the loader looks for a library, by the text of a search path.

use crate::origin::directory;
use core::mem::MaybeUninit;
use monarch_abi::PATH_MAX;
use monarch_abi::mem::PathBuffer;
use monarch_guest::absolute::Absolute;
use monarch_guest::sys;

/// Directories in which the loader looks for variants before it looks beside them.
pub const VARIANTS: [&[u8]; 6] = [b"glibc-hwcaps", b"tls", b"haswell", b"avx512_1", b"x86_64", b"aarch64"];

/// Whether the part of a candidate behind a directory is the library, or a variant of it in a
/// directory of the loader's.
#[must_use]
pub fn is_variant(rest: &[u8]) -> bool {
    let first = rest.iter().position(|&c| c == b'/').and_then(|slash| rest.get(..slash));
    first.is_none_or(|name| VARIANTS.contains(&name))
}

/// Whether a search path of the library of this name has a directory that a candidate belongs to.
#[must_use]
pub fn leads_to(path: &[u8], library: &[u8], candidate: &[u8]) -> bool {
    let holds = |dir: &Absolute| {
        let rest = candidate.strip_prefix(dir.get()).and_then(|rest| rest.strip_prefix(b"/"));
        rest.is_some_and(is_variant)
    };
    path.split(|&c| c == b':').any(|place| expanded(place, library).as_ref().is_some_and(holds))
}

/// A directory of a search path, in which `$ORIGIN` is replaced. `None` where it is not absolute,
/// or has other names in it.
#[must_use]
pub fn expanded(place: &[u8], loader: &[u8]) -> Option<Absolute> {
    let mut path = PathBuffer::front();
    let rest = place.strip_prefix(b"$ORIGIN").or_else(|| place.strip_prefix(b"${ORIGIN}"));
    match rest {
        Some(_) if loader.is_empty() => {
            let mut out = MaybeUninit::<[u8; PATH_MAX]>::uninit();
            let len = sys::readlink(c"/proc/self/exe", &mut out)?.min(PATH_MAX);
            // SAFETY: so many bytes were written.
            path.append(directory(unsafe { core::slice::from_raw_parts(out.as_ptr().cast::<u8>(), len) }))?;
        }
        Some(_) => path.append(directory(loader))?,
        None => {}
    }
    let rest = rest.unwrap_or(place);
    if rest.contains(&b'$') || (path.get().is_empty() && rest.first() != Some(&b'/')) {
        return None;
    }
    if path.get().first().is_some_and(|c| *c != b'/')
        || (!path.get().is_empty() && !matches!(rest.first(), None | Some(b'/')))
    {
        return None;
    }
    path.append(rest)?;
    let len = path.get().iter().rposition(|&c| c != b'/')? + 1;
    path.truncate(len);
    Some(Absolute(path))
}
