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
//! | [`descriptor_path`] | the paths of descriptors |
//! | [`descriptor_names`] | paths that are names of open descriptors |
//! | [`paths`] | from (dirfd, path) to an entry of the index |
//! | [`serve`] | opens: hit, demand, bypass |
//! | [`large`] | which descriptor is a large file's |
//! | [`chunks`] | reads of large files whose copy is being made |
//! | [`own_maps`] | mappings of copies, for small reads by chunks |
//! | [`pfs_fd`] | descriptors that have to be the PFS's: locks, ioctl |
//! | [`shell`] | descriptors that a shell hands to its children |
//! | [`small`] | reads of such descriptors from the copy |
//! | [`whole`] | complete copies of large files, for readers past the shim |
//! | [`mapped`] | mappings of large files that the agent follows |
//! | [`watched`] | descriptors of which something is to be done when they are closed |
//! | [`weights`] | how much of a mapped file its reader probably touches |
//! | [`direct`] | reads past the page cache |
//! | [`identity`] | which file a descriptor is a copy of, and what stat says about it |
//! | [`gone`] | files that the job removes |
//! | [`noproc`] | paths of descriptors where `/proc` is not mounted |
//! | [`changes`] | what the job changes below a root |
//! | [`foreign_changes`] | reports of changes where the control block cannot be opened |
//! | [`outputs`] | what the job writes below output roots |
//! | [`walk`](mod@walk) | ftw and nftw, by calls that hooks answer |
//! | [`dirs`] | virtual directory streams |
//! | [`fetched_dir`], [`dir_entries`] | listings that the agent has sent; room for the entries of a stream |
//! | [`on_demand`] | directories that the index does not hold |
//! | [`hints`] | hints of the job |
//! | `hooks` | the exported functions: thin shells, one file per family |
//!
//! What it shares with the audit library (shared memory, trust, bare system calls) is
//! [`monarch_guest`], whose modules are used here as if they were this crate's.
#![cfg_attr(not(test), no_std)]
#![allow(unreachable_pub, reason = "exported to C, not to Rust")]
#![allow(clippy::missing_safety_doc, reason = "the contract is that of the C function of the same name")]
#![allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "C types")]

pub mod boot;
pub mod changes;
pub mod chunks;
pub mod descriptor_names;
pub mod descriptor_path;
pub mod dir_entries;
pub mod direct;
pub mod dirs;
pub mod fallback;
pub mod fetched_dir;
pub mod foreign_changes;
pub mod gone;
pub mod hints;
mod hooks;
pub mod identity;
pub mod large;
pub mod mapped;
pub mod next;
pub mod noproc;
pub mod on_demand;
pub mod outputs;
pub mod own_maps;
pub mod paths;
pub mod pfs_fd;
pub mod serve;
pub mod shell;
pub mod small;
pub mod symbols;
pub mod walk;
pub mod watched;
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
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = hooks::close::ending;

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn(i32, *const *const u8, *const *const u8) = boot::boot;
