//! Room for the entries that a virtual directory stream has given out.
//!
//! The C library reads as many bytes at a time, and an entry stays as it is until it reads again:
//! threads that share a stream, and programs that keep entries for a while, rely on that.

use core::mem::size_of;

/// Bytes of the room.
pub const ENTRIES_BYTES: usize = 32 << 10;

/// Writes an entry into the room behind the `written` bytes that are in use, or at its beginning
/// when it is full. `after` is the position behind the entry.
///
/// # Safety
/// `room` must have [`ENTRIES_BYTES`], aligned to eight bytes, and `written` be 0 or what an
/// earlier call has left there.
#[inline]
pub unsafe fn write_entry<'a>(
    room: *mut u8,
    written: &mut usize,
    (ino, kind, name): (u64, u8, &[u8]),
    after: i64,
) -> &'a mut libc::dirent64 {
    if *written + size_of::<libc::dirent64>() > ENTRIES_BYTES {
        *written = 0;
    }
    // SAFETY: as much room is left; lengths of entries are multiples of eight. Integers, of which
    // any pattern of bits is a value.
    let e = unsafe {
        let e: *mut libc::dirent64 = room.add(*written).cast();
        e.write_bytes(0, 1);
        &mut *e
    };
    e.d_ino = ino;
    e.d_off = after;
    e.d_type = kind;
    let len = name.len().min(e.d_name.len() - 1);
    e.d_reclen = (19 + len + 1).next_multiple_of(8) as u16;
    for (to, from) in e.d_name.iter_mut().zip(name) {
        *to = *from as _;
    }
    if let Some(end) = e.d_name.get_mut(len) {
        *end = 0;
    }
    *written += usize::from(e.d_reclen);
    e
}
