//! [`CopyOutcome`]: how a copy ended.

use monarch_abi::word::Refusal;
use std::time::Duration;

/// Pause before a file for which no node has space is requested again.
pub(crate) const NO_ROOM_ANYWHERE_PAUSE: Duration = Duration::from_secs(10);

/// How the copy of a file ended.
#[derive(Clone, Copy)]
pub(crate) enum CopyOutcome {
    Resident(usize),
    /// There is a transient copy in this tier: it was decompressed, is to be compressed, or a peer
    /// owns its file.
    Decoded(usize),
    /// There is only a compressed copy, in this tier.
    Packed(usize),
    /// The copy was refused. It is tried again after the pause, if there is one.
    Refused(Refusal, Option<Duration>),
    /// The copy failed after this time. It is tried again after a pause that doubles.
    Failed(Duration),
    /// The file was streamed through the window, and that is over.
    Streamed,
    Bypass,
    Stopped,
}
