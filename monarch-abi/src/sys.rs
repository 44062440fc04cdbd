//! Bare system calls: the crate is linked into a preload library, where a wrapper of libc may be
//! the library's own, and `std` is out of reach.

/// A system call with up to six arguments; negative errno on failure.
///
/// # Safety
/// That of the system call.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn call(n: i64, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: by contract.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") n as isize => ret, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], out("rcx") _, out("r11") _, options(nostack));
    }
    ret
}

/// A system call with up to six arguments; negative errno on failure.
///
/// # Safety
/// That of the system call.
#[cfg(target_arch = "aarch64")]
#[inline]
pub unsafe fn call(n: i64, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: by contract.
    unsafe {
        core::arch::asm!("svc 0", in("x8") n, inlateout("x0") a[0] as isize => ret, in("x1") a[1], in("x2") a[2],
            in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
    }
    ret
}

#[cfg(target_arch = "x86_64")]
const SYS_FUTEX: i64 = 202;
#[cfg(target_arch = "aarch64")]
const SYS_FUTEX: i64 = 98;
/// Number of mmap(2).
#[cfg(target_arch = "x86_64")]
pub(crate) const SYS_MMAP: i64 = 9;
/// Number of mmap(2).
#[cfg(target_arch = "aarch64")]
pub(crate) const SYS_MMAP: i64 = 222;
/// Number of munmap(2).
#[cfg(target_arch = "x86_64")]
pub(crate) const SYS_MUNMAP: i64 = 11;
/// Number of munmap(2).
#[cfg(target_arch = "aarch64")]
pub(crate) const SYS_MUNMAP: i64 = 215;

/// A number that no two living threads of a process share: where the C library keeps their data.
/// The thread that `fork` copies keeps it in the child.
#[cfg(not(miri))]
#[must_use]
#[inline]
pub fn thread_pointer() -> usize {
    let here: usize;
    // SAFETY: reads a register, or the word that the ABI puts at the beginning of the thread's
    // data.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) here, options(nostack, preserves_flags, readonly));
    }
    // SAFETY: reads a register.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) here, options(nostack, preserves_flags, nomem));
    }
    here
}

/// The same for the interpreter, which knows no registers.
#[cfg(miri)]
pub fn thread_pointer() -> usize {
    extern crate std;
    std::thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| core::ptr::from_ref(here).addr())
}

const FUTEX_WAIT: usize = 0;
const FUTEX_WAKE: usize = 1;

/// Sleeps until `word` is no longer `expected`, it is woken, a signal comes, or the time (s,
/// ns) is over.
pub fn futex_wait(word: &core::sync::atomic::AtomicU32, expected: u32, timeout: Option<[i64; 2]>) {
    let t = timeout.as_ref().map_or(0, |t| core::ptr::from_ref(t) as usize);
    // SAFETY: the word and the time outlive the call.
    unsafe { call(SYS_FUTEX, [core::ptr::from_ref(word) as usize, FUTEX_WAIT, expected as usize, t, 0, 0]) };
}

/// Wakes up to `n` sleepers.
pub fn futex_wake(word: &core::sync::atomic::AtomicU32, n: u32) {
    // SAFETY: the word outlives the call.
    unsafe { call(SYS_FUTEX, [core::ptr::from_ref(word) as usize, FUTEX_WAKE, n as usize, 0, 0, 0]) };
}
