//! The preload library of Monarch: a guest in every process of a job.
//!
//! It answers calls about files below a root from shared memory and gives the application a real
//! kernel descriptor on a local copy; everything else it passes on to the next definition of the
//! symbol. It keeps no descriptors, remembers nothing about any on which an answer rests, starts no
//! threads, installs no handlers, uses no thread-local storage and does not allocate on the hit
//! path (a virtual directory stream is the one object it allocates).
//!
//! | module | what it holds |
//! |---|---|
//! | [`symbols`] | the table of all interposed symbols |
//! | [`next`] | finding the next definition of each |
//! | [`fallback`] | what an older C library lacks |
//! | [`boot`] | the constructor |
//! | [`ctx`] | the boot gate, shared memory, which roots can be trusted in this process |
//! | [`absolute`], [`descriptor_path`] | absolute paths; the paths of descriptors |
//! | [`descriptor_names`] | paths that are names of open descriptors |
//! | [`paths`] | from (dirfd, path) to an entry of the index |
//! | [`process`] | what this process has found out about itself |
//! | [`cwd`] | whether the working directory matters to any root |
//! | [`sys`] | bare system calls |
//! | [`errno`] | the error number of a thread |
//! | [`once`] | values that are written once |
//! | [`user`] | reading and writing through pointers of the application |
//! | [`copy_open`] | where a copy lies, opening it, waiting for it |
//! | [`serve`] | opens: hit, demand, bypass |
//! | [`guard`] | checks before use: whether a file has changed, whether its copy is sound |
//! | [`large`] | which descriptor is a large file's |
//! | [`chunks`] | reads of large files whose copy is being made |
//! | [`pfs_fd`] | descriptors that have to be the PFS's: locks, ioctl |
//! | [`shell`] | descriptors that a shell hands to its children |
//! | [`small`] | reads of such descriptors from the copy |
//! | [`whole`] | complete copies of large files, for readers past the shim |
//! | [`identity`] | which file a descriptor is a copy of, and what stat says about it |
//! | [`gone`] | files that the job removes |
//! | [`noproc`] | paths of descriptors where `/proc` is not mounted |
//! | [`mounts`] | what is mounted where |
//! | [`changes`] | what the job changes below a root |
//! | [`foreign_changes`] | reports of changes where the control block cannot be opened |
//! | [`dirs`] | virtual directory streams |
//! | [`hints`] | hints of the job |
//! | `hooks` | the exported functions: thin shells, one file per family |
#![cfg_attr(not(test), no_std)]
#![allow(unreachable_pub, reason = "exported to C, not to Rust")]
#![allow(clippy::missing_safety_doc, reason = "the contract is that of the C function of the same name")]
#![allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "C types")]

pub mod absolute;
pub mod boot;
pub mod changes;
pub mod chunks;
pub mod copy_open;
pub mod ctx;
pub mod cwd;
pub mod descriptor_names;
pub mod descriptor_path;
pub mod direct;
pub mod dirs;
pub mod errno;
pub mod fallback;
pub mod foreign_changes;
pub mod gone;
pub mod guard;
pub mod hints;
mod hooks;
pub mod identity;
pub mod large;
pub mod mapped;
pub mod mounts;
pub mod next;
pub mod noproc;
pub mod once;
pub mod paths;
pub mod pfs_fd;
pub mod process;
pub mod serve;
pub mod shell;
pub mod small;
pub mod symbols;
pub mod sys;
pub mod user;
pub mod weights;
pub mod whole;

/// The linker finds this symbol undefined if any panic is reachable; a test checks that it is not.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        fn monarch_shim_must_not_panic() -> !;
    }
    // SAFETY: never called: a release build in which this is reachable does not pass the tests.
    unsafe { monarch_shim_must_not_panic() }
}

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn(i32, *const *const u8, *const *const u8) = boot::boot;
