//! Real mounts of `slowfs`, seen through ordinary system calls. Without FUSE the tests say so and
//! pass.

#[path = "mount/changes.rs"]
mod changes;
#[path = "mount/common.rs"]
mod common;
#[path = "mount/consistency.rs"]
mod consistency;
#[path = "mount/counts.rs"]
mod counts;
#[path = "mount/faults.rs"]
mod faults;
#[path = "mount/lifecycle.rs"]
mod lifecycle;
#[path = "mount/passthrough.rs"]
mod passthrough;
#[path = "mount/timing.rs"]
mod timing;
#[path = "mount/tracepoint.rs"]
mod tracepoint;
