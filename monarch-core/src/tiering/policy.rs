//! The placement policy, and the hints that it decides by.

pub(crate) mod policy_handle;
