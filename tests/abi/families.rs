//! Every function of the C library that opens, stats, lists, reads or changes files is hooked or
//! left out on purpose.

use crate::tools::{hooks, libc, symbols};
use std::collections::BTreeSet;

/// The name without the parts that mark a variant: underscores, `64`, `_chk`, `_2`, `_nocancel`,
/// `_r`, `x`stat, `_IO_`.
fn plain(name: &str) -> &str {
    let mut n = name.trim_start_matches('_');
    for front in ["IO_", "libc_"] {
        n = n.strip_prefix(front).unwrap_or(n);
    }
    if n.starts_with("xstat") || n.starts_with("xmknod") {
        n = &n[1..];
    }
    loop {
        let before = n;
        for end in ["_nocancel", "_chk", "_2", "_r", "_np", "64v2", "64", "2"] {
            n = n.strip_suffix(end).filter(|n| !n.is_empty()).unwrap_or(n);
        }
        if n == before {
            return n;
        }
    }
}

/// A family: its name and which plain names belong to it.
type Family = (&'static str, fn(&str) -> bool);

const FAMILIES: &[Family] = &[
    ("open", |n| {
        ["open", "openat", "creat", "fopen", "freopen", "fdopen", "open_tree", "file_open", "file_fopen"].contains(&n)
    }),
    ("stat", |n| (n.ends_with("stat") || n.ends_with("statat") || n.ends_with("statx")) && !n.starts_with("malloc")),
    ("file systems", |n| n.ends_with("statfs") || n.ends_with("statvfs") || n.ends_with("pathconf")),
    ("locks", |n| ["flock", "lockf"].contains(&n)),
    ("requests", |n| n == "ioctl" || n == "prctl"),
    ("syncs", |n| ["sync", "syncfs", "fsync", "fdatasync", "msync", "sync_file_range"].contains(&n)),
    ("handles", |n| n.ends_with("_handle_at")),
    ("memory", |n| {
        ["munmap", "mprotect", "pkey_mprotect", "mremap", "madvise", "posix_madvise", "brk", "sbrk"].contains(&n)
            || ["shmat", "shmdt", "remap_file_pages", "process_madvise"].contains(&n)
    }),
    ("access", |n| n.ends_with("access") || n.ends_with("accessat")),
    ("directories", |n| {
        let parts =
            ["opendir", "readdir", "closedir", "rewinddir", "telldir", "seekdir", "dirfd", "getdirentries", "getdents"];
        parts.iter().any(|p| n.contains(p)) || n.starts_with("scandir")
    }),
    ("walks", |n| n.starts_with("glob") || n.starts_with("fts") || n.contains("ftw") || n.starts_with("word")),
    ("watches", |n| ["inotify_add_watch", "fanotify_mark", "ftok", "setmntent"].contains(&n)),
    ("libraries", |n| ["dlopen", "dlmopen"].contains(&n)),
    ("sockets", |n| ["bind", "connect"].contains(&n)),
    ("names", |n| {
        let parts = ["rename", "unlink", "rmdir", "mkdir", "symlink", "mknod", "mkfifo"];
        parts.iter().any(|p| n.starts_with(p)) || ["remove", "link", "linkat"].contains(&n)
    }),
    ("links", |n| n.starts_with("readlink") || n.starts_with("realpath") || n.starts_with("canonicalize")),
    ("contents", |n| n.contains("truncate") || n.contains("fallocate")),
    ("attributes", |n| n.contains("chmod") || n.contains("chown") || n.contains("utime") || n.contains("futimes")),
    ("extended attributes", |n| n.ends_with("xattr")),
    ("temporary files", |n| (n.starts_with("mk") && n.contains("temp")) || n.starts_with("tmp") || n == "tempnam"),
    ("reads", |n| ["read", "pread", "readv", "preadv"].contains(&n)),
    ("places", |n| {
        [
            "chdir",
            "fchdir",
            "getcwd",
            "getwd",
            "get_current_dir_name",
            "chroot",
            "setns",
            "unshare",
            "pivot_root",
            "mount",
            "move_mount",
            "umount",
        ]
        .contains(&n)
            || (n.starts_with("posix_spawn_file_actions_add") && (n.ends_with("open") || n.ends_with("dir")))
    }),
    ("rights", |n| {
        let ids = ["uid", "gid", "groups"].iter().any(|e| n.ends_with(e));
        (ids && (n.starts_with("set") || n.starts_with("init")) && n != "setpgid") || n == "capset"
    }),
    ("calls by number", |n| n == "syscall"),
    ("processes", |n| ["fork", "Fork", "vfork", "forkpty"].contains(&n)),
    ("programs", |n| n.starts_with("exec") || ["fexecve", "posix_spawn", "posix_spawnp"].contains(&n)),
    ("ends", |n| ["exit", "Exit", "quick_exit", "fclose", "fcloseall"].contains(&n)),
    ("logs of logins", |n| ["updwtmp", "updwtmpx", "utmpname", "utmpxname"].contains(&n)),
    ("descriptors", |n| {
        [
            "lseek",
            "llseek",
            "mmap",
            "sendfile",
            "copy_file_range",
            "splice",
            "vmsplice",
            "dup",
            "dup3",
            "fcntl",
            "close",
            "close_range",
            "closefrom",
            "posix_fadvise",
            "readahead",
        ]
        .contains(&n)
    }),
];

/// It changes the working directory past the shim, which asks for it where it matters.
const CLOSES: &str = "closes inside libc; the working directory is asked for";
const REAL: &str = "descriptors are the kernel's own";
const WRITTEN: &str = "the descriptor was opened for writing, which was seen";
const NAME_ONLY: &str = "makes up a name, no file";
const ENDS: &str = "the destructor of the preload library runs then, or the agent finds out";
const RESERVED: &str = "a name reserved for the C library, which programs are not compiled to";

/// The functions left out, with the reason.
const LEFT_OUT: &[(&str, &str)] = &[
    ("__open", RESERVED),
    ("__open64", RESERVED),
    ("_IO_fopen", RESERVED),
    ("_IO_file_fopen", RESERVED),
    ("_IO_file_open", RESERVED),
    ("_IO_file_stat", RESERVED),
    ("_IO_fdopen", RESERVED),
    ("__read", RESERVED),
    ("__pread64", RESERVED),
    ("__fcntl", RESERVED),
    ("__lseek", RESERVED),
    ("__close", RESERVED),
    ("__dup2", RESERVED),
    ("__statfs", RESERVED),
    ("sync", "all file systems"),
    ("sync_file_range", "writes pages that were written, of which a copy has none"),
    ("__sbrk", RESERVED),
    ("__mprotect", RESERVED),
    ("__madvise", RESERVED),
    ("__ioctl", RESERVED),
    ("__connect", RESERVED),
    ("__setmntent", RESERVED),
    ("process_madvise", "takes no advice after which memory cannot be read"),
    ("remap_file_pages", "what could be read can be read afterwards"),
    ("open_tree", "mounts, not files"),
    ("ustat", "about a device"),
    ("getdirentries", REAL),
    ("getdirentries64", REAL),
    ("getdents64", REAL),
    ("glob_pattern_p", "about text"),
    ("globfree", "frees memory"),
    ("globfree64", "frees memory"),
    ("fts_set", "about an entry that was given"),
    ("fts_close", CLOSES),
    ("fts64_set", "about an entry that was given"),
    ("fts64_close", CLOSES),
    ("wordfree", "frees memory"),
    ("ftruncate", WRITTEN),
    ("ftruncate64", WRITTEN),
    ("fallocate", WRITTEN),
    ("fallocate64", WRITTEN),
    ("posix_fallocate", WRITTEN),
    ("posix_fallocate64", WRITTEN),
    ("mktemp", NAME_ONLY),
    ("tmpnam", NAME_ONLY),
    ("tmpnam_r", NAME_ONLY),
    ("tempnam", NAME_ONLY),
    ("tmpfile", "in the temporary directory, without a name"),
    ("tmpfile64", "in the temporary directory, without a name"),
    ("pivot_root", "the next look at a root finds another inode"),
    ("posix_spawn_file_actions_addchdir_np", "the child's first look at its working directory is its own"),
    ("posix_spawn_file_actions_addfchdir_np", "the child's first look at its working directory is its own"),
    ("_Fork", "for signal handlers; its child keeps no working directory"),
    ("__fork", RESERVED),
    ("__vfork", RESERVED),
    ("forkpty", "its child keeps no working directory"),
    ("exit", ENDS),
    ("_IO_fclose", RESERVED),
    ("fcloseall", ENDS),
    ("lseek", REAL),
    ("lseek64", REAL),
    ("llseek", REAL),
    ("copy_file_range", REAL),
    ("splice", REAL),
    ("vmsplice", REAL),
];

/// Functions of the C library that programs may call.
fn exported() -> BTreeSet<String> {
    let all = symbols(&libc()).into_iter();
    all.filter(|s| s.is_function() && s.version != "GLIBC_PRIVATE").map(|s| s.name).collect()
}

fn family(name: &str) -> Option<&'static str> {
    FAMILIES.iter().find(|(_, of)| of(plain(name))).map(|(n, _)| *n)
}

#[test]
fn every_function_of_a_family_is_a_decision() {
    let (hooks, left_out) = (hooks(), LEFT_OUT.iter().map(|(n, _)| *n).collect::<BTreeSet<_>>());
    let open: Vec<_> = exported()
        .into_iter()
        .filter_map(|n| family(&n).map(|f| (f, n)))
        .filter(|(_, n)| !hooks.contains(n) && !left_out.contains(n.as_str()))
        .collect();
    assert!(open.is_empty(), "hook them, or leave them out with a reason: {open:#?}");
}

#[test]
fn functions_left_out_are_not_hooked_and_have_a_family() {
    let hooks = hooks();
    let mut seen = BTreeSet::new();
    for (name, why) in LEFT_OUT {
        assert!(!hooks.contains(*name), "{name} is hooked");
        assert!(family(name).is_some(), "{name} belongs to no family");
        assert!(!why.is_empty() && seen.insert(name), "{name} twice");
    }
}

#[test]
fn the_families_find_what_they_should() {
    for name in [
        "open",
        "__open64_2",
        "openat64",
        "fopen64",
        "freopen",
        "creat64",
        "stat",
        "__xstat64",
        "__fxstatat",
        "statx",
        "lstat64",
        "eaccess",
        "faccessat",
        "readdir64_r",
        "fdopendir",
        "dirfd",
        "scandirat64",
        "nftw64",
        "renameat2",
        "__xmknodat",
        "link",
        "mkfifoat",
        "ftruncate64",
        "lchown",
        "fchmodat",
        "utimensat",
        "futimes",
        "lutimes",
        "lremovexattr",
        "mkostemps64",
        "preadv64v2",
        "__pread64_chk",
        "read",
        "readv",
        "fchdir",
        "chroot",
        "dup3",
        "sendfile64",
        "flock",
        "lockf64",
        "ioctl",
        "fstatvfs64",
        "fpathconf",
        "syncfs",
        "open_by_handle_at",
        "mremap",
    ] {
        assert!(family(name).is_some(), "{name} ({})", plain(name));
    }
    for name in
        ["printf", "pthread_mutexattr_init", "reader", "openlog", "popen", "malloc_stats", "fread", "linger", "dirname"]
    {
        assert_eq!(family(name), None, "{name}");
    }
}

#[test]
fn every_hook_is_of_a_family_or_known_to_be_something_else() {
    let exported = exported();
    for name in hooks() {
        assert!(family(&name).is_some(), "{name} belongs to no family");
        // Old names are missing on architectures that came later.
        let is_old = name.contains("xstat") || name.contains("xmknod");
        assert!(exported.contains(&name) || is_old, "the C library has no {name}");
    }
}
