//! TODO

/// Who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// A copier, one file at a time.
    Threads,
    /// A ring, many at a time.
    Rings,
}

impl Lane {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Threads => Self::Rings,
            Self::Rings => Self::Threads,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Rings => "uring",
        }
    }
}
