//! TODO

use monarch_abi::word::Refusal;
use std::time::Duration;

/// Pause before a file is asked for again for which no node has room.
pub(crate) const ELSEWHERE: Duration = Duration::from_secs(10);

/// How a fetch ended.
#[derive(Clone, Copy)]
pub(crate) enum CopyOutcome {
    Resident(usize),
    /// A copy is there that was decoded, or is to be packed.
    Decoded(usize),
    /// There is a packed copy only.
    Packed(usize),
    /// Not now; try again after the pause, if any.
    Refused(Refusal, Option<Duration>),
    /// Something went wrong after so much time; try again after a pause that grows.
    Failed(Duration),
    /// It passed through, and that is over.
    Streamed,
    Bypass,
    Stopped,
}
