//! Exit codes, beside 0 and 1.

/// Exit code for wrong usage or configuration.
pub(crate) const EX_USAGE: u8 = 2;
/// Exit code when the answer is no: a path is not served, an index differs from its root, there is
/// no room, a job cannot be served (`run --strict`, `config check`).
pub(crate) const EX_NO: u8 = 3;
/// Exit code when there is no agent to talk to.
pub(crate) const EX_NO_AGENT: u8 = 4;
/// Exit code when not all that jobs wrote below output roots is published.
pub(crate) const EX_NOT_PUBLISHED: u8 = 5;
/// Exit code of `run` when the command cannot be executed, as shells have it.
pub(crate) const EX_NOT_EXECUTABLE: u8 = 126;
/// Exit code of `run` when there is no such command, as shells have it.
pub(crate) const EX_NOT_FOUND: u8 = 127;
