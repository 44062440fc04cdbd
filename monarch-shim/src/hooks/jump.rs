//! Functions that are jumped to after a look at their arguments.
//!
//! `dlopen` looks at the address that it returns to: where its caller is, its search path is. And
//! functions with any number of arguments cannot be defined in Rust. So no frame of this library
//! lies between such a function and its caller.

use super::Missing;
use crate::outputs::{descriptors, own_environment, publish_library, publish_program, publish_searched};
use crate::symbols::Sym;
use core::ffi::{c_char, c_int, c_long, c_void};

const CWD: c_int = libc::AT_FDCWD;

/// Exports a function that calls `$before` with its first arguments, and jumps to the address that
/// it gets from there, with all arguments as they were.
macro_rules! jump {
    ($($name:ident => $before:ident;)*) => {$(
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "endbr64",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                // Of functions with any number of arguments: how many vector registers hold some.
                "push rax",
                ".cfi_adjust_cfa_offset 56",
                "call {before}",
                "mov r11, rax",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                ".cfi_adjust_cfa_offset -56",
                "jmp r11",
                ".cfi_endproc",
                before = sym $before,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "hint #34",
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "bl {before}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                before = sym $before,
            )
        }
    )*};
}

jump! {
    dlopen => before_dlopen;
    dlmopen => before_dlmopen;
    execl => before_execl;
    execle => before_execle;
    execlp => before_execlp;
}

extern "C" fn no_library() -> *mut c_void {
    Missing::missing()
}

extern "C" fn no_program() -> c_int {
    Missing::missing()
}

/// The job has removed the program: errno says so.
extern "C" fn refused() -> c_int {
    -1
}

fn next_or(sym: Sym, missing: usize) -> usize {
    match crate::next::address(sym) {
        0 => missing,
        next => next,
    }
}

unsafe extern "C" fn before_dlopen(path: *const c_char) -> usize {
    // SAFETY: the application's pointer.
    unsafe { publish_library(path) };
    next_or(Sym::dlopen, no_library as *const () as usize)
}

unsafe extern "C" fn before_dlmopen(_: c_long, path: *const c_char) -> usize {
    // SAFETY: the application's pointer.
    unsafe { publish_library(path) };
    next_or(Sym::dlmopen, no_library as *const () as usize)
}

/// Before a program is executed; `removed` is the answer of [`publish_program`].
fn executing(sym: Sym, removed: Option<c_int>) -> usize {
    if removed.is_some() { refused as *const () as usize } else { next_or(sym, no_program as *const () as usize) }
}

unsafe extern "C" fn before_execl(path: *const c_char) -> usize {
    descriptors::executing();
    // SAFETY: the application's pointer.
    executing(Sym::execl, unsafe { publish_program(CWD, path, own_environment()) })
}

/// (The environment stands behind the arguments.)
unsafe extern "C" fn before_execle(path: *const c_char) -> usize {
    descriptors::executing();
    // SAFETY: the application's pointer.
    executing(Sym::execle, unsafe { publish_program(CWD, path, core::ptr::null()) })
}

unsafe extern "C" fn before_execlp(file: *const c_char) -> usize {
    descriptors::executing();
    // SAFETY: the application's pointer.
    executing(Sym::execlp, unsafe { publish_searched(file, own_environment()) })
}
