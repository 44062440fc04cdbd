//! What the shim and the supervisor of raw system calls agree on (crate `monarch-rawcalls`).
//!
//! Both marks are arguments that the kernel itself ignores or refuses, so that they are harmless in
//! a job without a supervisor.

use core::ffi::c_int;

/// Sixth argument of a changing call that the shim makes for itself, in its staging directories: no
/// such call has six, so that the kernel ignores it, and the filter lets it pass.
pub const OWN_CALL: u64 = 0x6d6f_6e61_7263_6821;

/// Flags of an unlinkat(2) by which the shim asks whether the supervisor would answer for changes
/// of that path by this process. Without a supervisor the kernel refuses them: EINVAL.
pub const PROBE_FLAGS: c_int = 0x4d6f_0000;

/// What such a call returns if the supervisor would.
pub const PROBE_ANSWER: isize = 0x4d6f;
