//! What jobs write below an output root: as if it were written to the PFS itself.
//!
//! | file | what it compares |
//! |---|---|
//! | `world.rs` | a PFS with an output root on it; runs a job direct and staged |
//! | `replays.rs` | the calls of frameworks and tools, direct against staged |
//! | `raw_calls.rs` | changes by system calls that no preload library sees, with `run.raw_calls` |
//! | `closing.rs` | every way in which a file loses its last writer |
//! | `inside.rs` | names that the C library and the kernel look for past all hooks |
//! | `corners.rs` | names that are renamed over while written, no descriptor left, stale copies |
//! | `order.rs` | what a reader of the PFS sees while checkpoints are published |
//! | `journal.rs` | the journal of a long job, and what is older than the PFS in the end |
//! | `failures.rs` | agents and jobs that die, a PFS that fails, wrong words of the command line |

#[path = "outputs/closing.rs"]
mod closing;
#[path = "outputs/corners.rs"]
mod corners;
#[path = "outputs/failures.rs"]
mod failures;
#[path = "outputs/inside.rs"]
mod inside;
#[path = "outputs/journal.rs"]
mod journal;
#[path = "outputs/order.rs"]
mod order;
#[path = "outputs/raw_calls.rs"]
mod raw_calls;
#[path = "outputs/replays.rs"]
mod replays;
#[path = "outputs/tree.rs"]
mod tree;
#[path = "outputs/world.rs"]
mod world;
