//! The changing calls, and where their arguments are.

use monarch_abi::raw_calls::PROBE_FLAGS;

/// `fchmodat2`, the same on all machines.
const SYS_FCHMODAT2: i64 = 452;
/// `landlock_restrict_self`, the same on all machines.
const SYS_LANDLOCK_RESTRICT_SELF: i64 = 446;

/// The calls of which the filter notifies the supervisor.
#[cfg(target_arch = "x86_64")]
pub(crate) const NUMBERS: [i64; 26] = [
    libc::SYS_rename,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_link,
    libc::SYS_unlink,
    libc::SYS_symlink,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_truncate,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_mknod,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_fchownat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_fchmodat,
    libc::SYS_utimensat,
    libc::SYS_renameat2,
    SYS_FCHMODAT2,
    SYS_LANDLOCK_RESTRICT_SELF,
];

/// The calls of which the filter notifies the supervisor.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const NUMBERS: [i64; 13] = [
    libc::SYS_truncate,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_fchownat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_fchmodat,
    libc::SYS_utimensat,
    libc::SYS_renameat2,
    SYS_FCHMODAT2,
    SYS_LANDLOCK_RESTRICT_SELF,
];

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name moves; flags of renameat2.
    Rename,
    /// A file gets another name; flags of linkat.
    Link,
    /// A name is removed; flags of unlinkat.
    Unlink,
    /// A symbolic link is made; the second path is its text.
    Symlink,
    /// A length is set.
    Truncate,
    /// Mode bits, and flags of fchmodat.
    Mode,
    /// Owner, group, and flags of fchownat.
    Owner,
    /// Two times, and flags of utimensat.
    Times,
    /// A directory, with mode bits.
    MakeDir,
    /// A node, with mode and device.
    MakeNode,
    /// The shim asks whether a change of that path would be answered.
    Probe,
    /// The process gives up rights that no other process can see.
    Restrict,
}

/// A path or text among the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    /// The directory that a relative path begins at; `None` for a text that is no path.
    pub(crate) dir: Option<i32>,
    /// Its address in the caller's memory.
    pub(crate) address: u64,
}

/// Where the caller has the times of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    /// The call has none, or means the present.
    None,
    /// Two `timespec`.
    Nanoseconds(u64),
    /// Two `timeval`.
    Microseconds(u64),
    /// `utimbuf`: two seconds.
    Seconds(u64),
}

/// A changing call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    pub(crate) first: Option<Text>,
    pub(crate) second: Option<Text>,
    /// The rest of its arguments, in the order of the function's `at` form.
    pub(crate) numbers: [i64; 3],
    pub(crate) times: Times,
}

const CWD: i32 = libc::AT_FDCWD;

fn path(dir: i32, address: u64) -> Option<Text> {
    Some(Text { dir: Some(dir), address })
}

fn call(kind: Kind, first: Option<Text>, second: Option<Text>, numbers: [i64; 3]) -> Call {
    Call { kind, first, second, numbers, times: Times::None }
}

/// A descriptor, a flag or a user ID: the kernel looks at 32 bits.
fn int(word: u64) -> i32 {
    word as u32 as i32
}

fn number(word: u64) -> i64 {
    i64::from(int(word))
}

/// Finds the arguments of a call; `None` for a call that changes nothing.
pub(crate) fn decode(nr: i64, a: [u64; 6]) -> Option<Call> {
    let fd = int(a[0]);
    let of = |kind, numbers| Some(call(kind, path(fd, a[1]), None, numbers));
    match nr {
        libc::SYS_unlinkat if int(a[2]) == PROBE_FLAGS => of(Kind::Probe, [0; 3]),
        libc::SYS_unlinkat => of(Kind::Unlink, [number(a[2]), 0, 0]),
        libc::SYS_renameat => Some(call(Kind::Rename, path(fd, a[1]), path(int(a[2]), a[3]), [0; 3])),
        libc::SYS_renameat2 => Some(call(Kind::Rename, path(fd, a[1]), path(int(a[2]), a[3]), [number(a[4]), 0, 0])),
        libc::SYS_linkat => Some(call(Kind::Link, path(fd, a[1]), path(int(a[2]), a[3]), [number(a[4]), 0, 0])),
        libc::SYS_symlinkat => {
            Some(call(Kind::Symlink, path(int(a[1]), a[2]), Some(Text { dir: None, address: a[0] }), [0; 3]))
        }
        libc::SYS_truncate => Some(call(Kind::Truncate, path(CWD, a[0]), None, [a[1] as i64, 0, 0])),
        libc::SYS_fchmodat => of(Kind::Mode, [number(a[2]), 0, 0]),
        SYS_FCHMODAT2 => of(Kind::Mode, [number(a[2]), number(a[3]), 0]),
        libc::SYS_fchownat => of(Kind::Owner, [number(a[2]), number(a[3]), number(a[4])]),
        libc::SYS_utimensat => {
            let times = if a[2] == 0 { Times::None } else { Times::Nanoseconds(a[2]) };
            of(Kind::Times, [number(a[3]), 0, 0]).map(|c| Call { times, ..c })
        }
        libc::SYS_mkdirat => of(Kind::MakeDir, [number(a[2]), 0, 0]),
        libc::SYS_mknodat => of(Kind::MakeNode, [number(a[2]), number(a[3]), 0]),
        SYS_LANDLOCK_RESTRICT_SELF => Some(call(Kind::Restrict, None, None, [0; 3])),
        _ => by_old_number(nr, a),
    }
}

/// Calls without a directory, which newer machines do not have.
#[cfg(target_arch = "x86_64")]
fn by_old_number(nr: i64, a: [u64; 6]) -> Option<Call> {
    let of = |kind, numbers| Some(call(kind, path(CWD, a[0]), None, numbers));
    let timed = |found: Option<Call>, times: Times| found.map(|c| Call { times, ..c });
    match nr {
        libc::SYS_rename => Some(call(Kind::Rename, path(CWD, a[0]), path(CWD, a[1]), [0; 3])),
        libc::SYS_link => Some(call(Kind::Link, path(CWD, a[0]), path(CWD, a[1]), [0; 3])),
        libc::SYS_symlink => {
            Some(call(Kind::Symlink, path(CWD, a[1]), Some(Text { dir: None, address: a[0] }), [0; 3]))
        }
        libc::SYS_unlink => of(Kind::Unlink, [0; 3]),
        libc::SYS_rmdir => of(Kind::Unlink, [i64::from(libc::AT_REMOVEDIR), 0, 0]),
        libc::SYS_mkdir => of(Kind::MakeDir, [number(a[1]), 0, 0]),
        libc::SYS_mknod => of(Kind::MakeNode, [number(a[1]), number(a[2]), 0]),
        libc::SYS_chmod => of(Kind::Mode, [number(a[1]), 0, 0]),
        libc::SYS_chown => of(Kind::Owner, [number(a[1]), number(a[2]), 0]),
        libc::SYS_lchown => of(Kind::Owner, [number(a[1]), number(a[2]), i64::from(libc::AT_SYMLINK_NOFOLLOW)]),
        libc::SYS_utime => timed(of(Kind::Times, [0; 3]), given(a[1], Times::Seconds)),
        libc::SYS_utimes => timed(of(Kind::Times, [0; 3]), given(a[1], Times::Microseconds)),
        libc::SYS_futimesat => {
            let found = Some(call(Kind::Times, path(int(a[0]), a[1]), None, [0; 3]));
            timed(found, given(a[2], Times::Microseconds))
        }
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn by_old_number(_: i64, _: [u64; 6]) -> Option<Call> {
    None
}

#[cfg(target_arch = "x86_64")]
fn given(address: u64, times: fn(u64) -> Times) -> Times {
    if address == 0 { Times::None } else { times(address) }
}
