//! The only door to the atomics of what readers and the agent do together ([`crate::bitmap`],
//! [`crate::chunks`], [`crate::demand`]): the model test (`tests/model.rs`) compiles those very
//! files with atomics that try every order.

pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
