//! Copying a file, or the chunks of a large one, from the claim in its state word to its outcome.

pub(crate) mod accounting;
pub(crate) mod adoption;
pub(crate) mod chunk_copy_task;
pub(crate) mod chunked_fetch;
pub(crate) mod chunked_fetches;
pub(crate) mod fetch_lines;
pub(crate) mod fetch_starter;
pub(crate) mod file_copies;
pub(crate) mod file_copy_context;
pub(crate) mod file_copy_task;
pub(crate) mod publisher;
pub(crate) mod stream_window;
pub(crate) mod streaming;
