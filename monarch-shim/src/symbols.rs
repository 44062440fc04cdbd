//! The table of all interposed symbols.
//!
//! A test compares it, family by family, with what libc exports, so that a missed variant is a
//! decision: those that are left out on purpose are listed in the test with the reason.

use core::ffi::CStr;

macro_rules! symbols {
    ($($name:ident)*) => {
        /// An interposed symbol (and, last, one that is only looked up).
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Clone, Copy, Debug)]
        #[repr(usize)]
        pub enum Sym { $($name),* }
        /// Their names, by position.
        pub const NAMES: &[&CStr] = &[$(
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) { Ok(n) => n, Err(_) => c"" }
        ),*];
    };
}

symbols! {
    // data
    open open64 openat openat64 creat creat64 __open_2 __open64_2 __openat_2 __openat64_2
    fopen fopen64 freopen freopen64
    read pread pread64 readv preadv preadv64 preadv2 preadv64v2 __read_chk __pread_chk __pread64_chk
    mmap mmap64 posix_fadvise posix_fadvise64 readahead fdopen sendfile sendfile64
    close fclose close_range closefrom _exit _Exit quick_exit msync fdopendir
    execve execv execvp execvpe execveat execl execle execlp posix_spawn posix_spawnp dlopen dlmopen
    realpath __realpath_chk canonicalize_file_name
    dup dup2 dup3 fcntl fcntl64 flock lockf lockf64 ioctl
    statfs statfs64 statvfs statvfs64 pathconf
    fstatfs fstatfs64 fstatvfs fstatvfs64 fpathconf syncfs fsync fdatasync
    // metadata
    stat stat64 lstat lstat64 fstat fstat64 fstatat fstatat64 statx
    __xstat __xstat64 __lxstat __lxstat64 __fxstat __fxstat64 __fxstatat __fxstatat64
    access faccessat euidaccess eaccess
    opendir readdir readdir64 readdir_r readdir64_r closedir rewinddir telldir seekdir dirfd
    scandir scandir64 scandirat scandirat64
    ftw ftw64 nftw nftw64 fts_open fts64_open fts_read fts64_read fts_children fts64_children glob glob64 wordexp
    inotify_add_watch fanotify_mark ftok setmntent
    getxattr listxattr lgetxattr llistxattr fgetxattr flistxattr
    readlink readlinkat __readlink_chk __readlinkat_chk
    // changes
    rename renameat renameat2 unlink unlinkat remove rmdir mkdir mkdirat link linkat symlink symlinkat
    mknod mknodat __xmknod __xmknodat mkfifo mkfifoat open_by_handle_at name_to_handle_at
    truncate truncate64 chmod fchmod fchmodat lchmod chown lchown fchown fchownat
    utime utimes lutimes futimes futimesat utimensat futimens
    setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
    mkstemp mkstemp64 mkostemp mkostemp64 mkstemps mkstemps64 mkostemps mkostemps64 mkdtemp
    bind connect
    updwtmp updwtmpx utmpname utmpxname posix_spawn_file_actions_addopen fexecve
    // user, working directory, mounts, memory
    setuid seteuid setreuid setresuid setfsuid setgid setegid setregid setresgid setfsgid setgroups initgroups
    fork vfork chdir fchdir getcwd __getcwd_chk getwd __getwd_chk get_current_dir_name syscall capset
    chroot setns unshare mount move_mount umount umount2
    munmap mprotect pkey_mprotect mremap madvise posix_madvise shmat shmdt brk sbrk prctl
    // looked up only
    gnu_get_libc_version pthread_testcancel
}

/// Number of symbols.
pub const COUNT: usize = NAMES.len();
