//! The threads of the tiering engine, and what each of them does next.

pub(crate) mod decompress_ahead;
pub(crate) mod dispatcher;
pub(crate) mod promoter;
pub(crate) mod worker_pool;
pub(crate) mod workers;
