//! The placement policy, and the hints that it decides by.
//!
//! Invariant: the policy is locked before the hints.

pub(crate) mod policy_handle;
