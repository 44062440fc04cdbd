//! Counters: one row per FUSE operation, in one table that yields the enum, the public counters and
//! the live ones.
//!
//! A call is counted when it arrives, before it is answered: a client that has an answer sees the
//! count. The kernel sends RELEASE and FORGET in the background, so those two may lag behind the
//! `close` that caused them.

use std::collections::BTreeMap;
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::units::string_conversions;

/// Which latency a call pays, and under which sum it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Metadata calls other than opens.
    Meta,
    /// `open` and `create`: metadata latency, counted apart because each read needs one.
    Open,
    /// Data calls: data latency and bandwidth.
    Data,
    /// Calls that no client waits for (`release`, `forget`) or that a PFS client answers alone
    /// (`flush`).
    Free,
}

macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident $field:ident $class:ident $opcode:literal;)*) => {
        /// A FUSE operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum Op {
            $($(#[$doc])* $variant,)*
        }

        impl Op {
            /// Every operation, in the order of the table.
            pub const ALL: &[Op] = &[$(Op::$variant),*];

            /// The name used in JSON: the FUSE name in lower case.
            pub const fn name(self) -> &'static str {
                match self { $(Op::$variant => stringify!($field),)* }
            }

            /// Which latency the call pays.
            pub const fn class(self) -> Class {
                match self { $(Op::$variant => Class::$class,)* }
            }

            /// The opcode in the kernel's FUSE protocol (`enum fuse_opcode`).
            pub const fn opcode(self) -> u32 {
                match self { $(Op::$variant => $opcode,)* }
            }
        }

        /// Calls and bytes since the mount or the last reset.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Counters {
            $($(#[$doc])* pub $field: u64,)*
            /// Bytes returned by `read`.
            pub bytes_read: u64,
            /// Bytes taken by `write`.
            pub bytes_written: u64,
            /// Calls answered with an error of any origin (a lookup of a missing name too).
            pub errors: u64,
            /// Calls that a fault rule touched.
            pub faults: u64,
        }

        impl Counters {
            /// Calls of one operation.
            pub const fn get(&self, op: Op) -> u64 {
                match op { $(Op::$variant => self.$field,)* }
            }
        }

        impl Sub for Counters {
            type Output = Counters;

            fn sub(self, before: Counters) -> Counters {
                Counters {
                    $($field: self.$field.wrapping_sub(before.$field),)*
                    bytes_read: self.bytes_read.wrapping_sub(before.bytes_read),
                    bytes_written: self.bytes_written.wrapping_sub(before.bytes_written),
                    errors: self.errors.wrapping_sub(before.errors),
                    faults: self.faults.wrapping_sub(before.faults),
                }
            }
        }

        impl Live {
            /// The counters as they are now.
            pub(crate) fn snapshot(&self) -> Counters {
                Counters {
                    $($field: self.calls[Op::$variant as usize].load(Relaxed),)*
                    bytes_read: self.bytes_read.load(Relaxed),
                    bytes_written: self.bytes_written.load(Relaxed),
                    errors: self.errors.load(Relaxed),
                    faults: self.faults.load(Relaxed),
                }
            }
        }
    };
}

operations! {
    /// LOOKUP: a name in a directory.
    Lookup lookup Meta 1;
    /// Nodes that the kernel dropped (FORGET, alone or batched).
    Forget forget Free 2;
    /// GETATTR: stat.
    Getattr getattr Meta 3;
    /// SETATTR: chmod, chown, truncate, utimens.
    Setattr setattr Meta 4;
    /// READLINK.
    Readlink readlink Meta 5;
    /// SYMLINK.
    Symlink symlink Meta 6;
    /// MKNOD.
    Mknod mknod Meta 8;
    /// MKDIR.
    Mkdir mkdir Meta 9;
    /// UNLINK.
    Unlink unlink Meta 10;
    /// RMDIR.
    Rmdir rmdir Meta 11;
    /// RENAME and RENAME2.
    Rename rename Meta 45;
    /// LINK: a new hard link.
    Link link Meta 13;
    /// OPEN of a file.
    Open open Open 14;
    /// READ.
    Read read Data 15;
    /// WRITE.
    Write write Data 16;
    /// STATFS.
    Statfs statfs Meta 17;
    /// RELEASE: the last close of an open file.
    Release release Free 18;
    /// FSYNC.
    Fsync fsync Meta 20;
    /// SETXATTR.
    Setxattr setxattr Meta 21;
    /// GETXATTR.
    Getxattr getxattr Meta 22;
    /// LISTXATTR.
    Listxattr listxattr Meta 23;
    /// REMOVEXATTR.
    Removexattr removexattr Meta 24;
    /// FLUSH: every close; asked for only when option `flush` is on.
    Flush flush Free 25;
    /// OPENDIR.
    Opendir opendir Meta 27;
    /// READDIR.
    Readdir readdir Meta 28;
    /// RELEASEDIR.
    Releasedir releasedir Free 29;
    /// FSYNCDIR.
    Fsyncdir fsyncdir Meta 30;
    /// ACCESS.
    Access access Meta 34;
    /// CREATE: create and open.
    Create create Open 35;
    /// IOCTL (always refused).
    Ioctl ioctl Free 39;
    /// FALLOCATE.
    Fallocate fallocate Meta 43;
    /// READDIRPLUS: READDIR with attributes.
    Readdirplus readdirplus Meta 44;
    /// LSEEK: `SEEK_DATA` and `SEEK_HOLE`.
    Lseek lseek Meta 46;
    /// COPY_FILE_RANGE.
    CopyFileRange copy_file_range Data 47;
}

impl Counters {
    /// Calls to the metadata server other than opens: lookups, stats, listings, changes.
    pub fn metadata(&self) -> u64 {
        self.sum(Class::Meta)
    }

    /// `open` and `create`.
    pub fn opens(&self) -> u64 {
        self.sum(Class::Open)
    }

    /// Every call that a client waits for.
    pub fn calls(&self) -> u64 {
        self.metadata() + self.opens() + self.sum(Class::Data)
    }

    fn sum(&self, class: Class) -> u64 {
        Op::ALL.iter().filter(|op| op.class() == class).map(|op| self.get(*op)).sum()
    }
}

impl std::str::FromStr for Op {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Op::ALL.iter().copied().find(|op| op.name() == name).ok_or_else(|| format!("{name:?} is no operation"))
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
string_conversions!(Op);

/// The counters of a running mount.
pub(crate) struct Live {
    calls: [AtomicU64; Op::ALL.len()],
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) faults: AtomicU64,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            calls: std::array::from_fn(|_| AtomicU64::new(0)),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        }
    }
}

impl Live {
    /// Counts one call.
    pub(crate) fn call(&self, op: Op) {
        self.calls[op as usize].fetch_add(1, Relaxed);
    }

    /// Back to zero.
    pub(crate) fn reset(&self) {
        for counter in &self.calls {
            counter.store(0, Relaxed);
        }
        for counter in [&self.bytes_read, &self.bytes_written, &self.errors, &self.faults] {
            counter.store(0, Relaxed);
        }
    }
}

/// What happened to one file, under the path it had when it was last opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathCounts {
    /// LOOKUP requests that found the file (entries of READDIRPLUS are not counted).
    pub lookups: u64,
    /// GETATTR requests.
    pub getattrs: u64,
    /// OPEN and CREATE requests.
    pub opens: u64,
    /// READ requests.
    pub reads: u64,
    /// Bytes returned.
    pub bytes_read: u64,
    /// WRITE requests.
    pub writes: u64,
    /// Bytes taken.
    pub bytes_written: u64,
}

/// Counts by path relative to the root of the mount (UTF-8, replacement characters where it is
/// not).
pub(crate) type ByPath = BTreeMap<String, PathCounts>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_follow_the_classes() {
        let live = Live::default();
        for op in [Op::Lookup, Op::Getattr, Op::Open, Op::Read, Op::Read, Op::Release] {
            live.call(op);
        }
        let counters = live.snapshot();
        assert_eq!((counters.metadata(), counters.opens(), counters.calls()), (2, 1, 5));
        live.reset();
        assert_eq!(live.snapshot(), Counters::default());
    }

    #[test]
    fn names_parse_back() {
        for op in Op::ALL {
            assert_eq!(op.name().parse(), Ok(*op));
        }
    }
}
