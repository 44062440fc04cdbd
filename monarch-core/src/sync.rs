//! The only door to the locks and atomics of the chunks of one file: the model test (`tests/model.rs`) compiles that very file with
//! ones that try every order.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
