//! The audit library of Monarch: has the dynamic loader map shared libraries and extensions below a
//! root from their copies.
//!
//! `ld.so` opens libraries by system calls of its own, which no preload library sees. It asks audit
//! libraries (rtld-audit(7)) for each name that it is about to look for. This one answers with the
//! copy where there is one, and otherwise with the name as it was: then `ld.so` goes on as ever.
//! The library lies in a namespace of its own. It needs no other library, keeps no threads, and
//! allocates nothing; the loader's lock is held whenever it runs.
//!
//! | module | what it holds |
//! |---|---|
//! | [`hooks`] | the exported functions |
//! | [`boot`] | whether the library is of use in this process |
//! | [`state`] | what is remembered between two calls |
//! | [`search`] | names and candidates: what is answered |
//! | [`search_path`] | directories of a search path, by its text |
//! | [`library`] | from a path to its copy: hit, demand, bypass |
//! | [`opened`] | a copy that was opened for the loader |
//! | [`answer`] | the string that is answered, and what keeps it valid |
//! | [`origin`] | the directory of a library as the loader remembers it |
//! | [`directories`] | what the loader remembers about the directories of a search path |
//! | [`mapped`] | which libraries are mapped, and from where |
//! | [`early`] | libraries that are looked for while their root has no index yet |
//! | [`link_map`] | structures of the loader |
//! | [`elf`] | whether a copy can be loaded at all |
//! | `runtime` | the functions of the C library that are needed |
#![cfg_attr(not(test), no_std)]
#![allow(unreachable_pub, reason = "exported to C, not to Rust")]
#![allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "C types")]

pub mod answer;
pub mod boot;
pub mod directories;
pub mod early;
pub mod elf;
pub mod hooks;
pub mod library;
pub mod link_map;
pub mod mapped;
pub mod opened;
pub mod origin;
#[cfg(not(test))]
mod runtime;
pub mod search;
pub mod search_path;
pub mod state;

/// The linker finds this symbol undefined if any panic is reachable; a test checks that it is not.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        fn monarch_audit_must_not_panic() -> !;
    }
    // SAFETY: never called: a release build in which this is reachable does not pass the tests.
    unsafe { monarch_audit_must_not_panic() }
}

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn(i32, *const *const u8, *const *const u8) = boot::constructor;
