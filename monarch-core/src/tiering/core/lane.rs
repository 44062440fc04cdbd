//! [`Lane`]: the two kinds of workers that copy.

/// The kind of worker that copies a file or chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Copiers: threads that copy one file at a time.
    Threads,
    /// Rings: io_uring threads that copy many files at a time.
    Rings,
}

impl Lane {
    /// The other lane.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Threads => Self::Rings,
            Self::Rings => Self::Threads,
        }
    }

    /// Its name in logs and reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Rings => "uring",
        }
    }
}
