//! The one error of configuration: what is wrong, where it was written, why, and what to write
//! instead.
//!
//! It is a [`miette::Diagnostic`], so that a program with a reporter of its own can show it.
//! [`super::screen()`] draws it for batch logs, where most of these errors are read.

use std::fmt;
use std::path::{Path, PathBuf};

use miette::{Diagnostic, LabeledSpan, SourceCode};

/// What went wrong, for programs and tests; people read the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The configuration file cannot be read.
    Unreadable,
    /// The text is not YAML.
    Syntax,
    /// A key or an environment variable that means nothing.
    UnknownKey,
    /// A list where a number belongs, a word where `true` belongs, and so on.
    WrongType,
    /// A size without a unit, a rate where a size belongs, and so on.
    WrongUnit,
    /// A value outside its bounds, or two values that contradict each other.
    OutOfBounds,
    /// A value that this version does not offer yet.
    NotYet,
    /// Something that must be given is not.
    Missing,
    /// A root that cannot be used.
    BadRoot,
    /// Roots or tiers that lie in one another.
    Overlap,
    /// A tier that cannot be used.
    BadTier,
    /// A directory that another user can put another one in the place of.
    Exposed,
    /// A tier on the file system that tiers are there to relieve.
    TierOnNetwork,
    /// Roots that the site forbids.
    Forbidden,
    /// A capacity that the file system or the memory cannot hold.
    TooBig,
}

/// Where the offending value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a file; the span is in bytes of `text`.
    File { path: PathBuf, text: String, line: usize, start: usize, len: usize },
    /// In this environment variable.
    Env(String),
    /// In this flag.
    Flag(String),
    /// Nowhere: something was left out, or a default does not fit here.
    Nowhere,
}

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    field: String,
    message: String,
    remedy: String,
    place: Place,
}

impl ConfigError {
    pub(super) fn new(kind: ErrorKind, field: impl fmt::Display, wrong: Wrong, place: Place) -> Self {
        Self(Box::new(Inner { kind, field: field.to_string(), message: wrong.message, remedy: wrong.remedy, place }))
    }

    /// What went wrong, for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The field in question, such as `tiers[1].capacity`; empty when there is none.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.0.field
    }

    /// What is wrong, without the field and the place.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What to do about it: one or a few lines.
    #[must_use]
    pub fn remedy(&self) -> &str {
        &self.0.remedy
    }

    /// File and line (from 1) of the offending value, if it came from a file.
    #[must_use]
    pub fn file_line(&self) -> Option<(&Path, usize)> {
        match &self.0.place {
            Place::File { path, line, .. } => Some((path, *line)),
            _ => None,
        }
    }

    /// Where the value came from.
    pub(super) const fn place(&self) -> &Place {
        &self.0.place
    }

    /// Field and message, without the place.
    pub(super) fn bare(&self) -> String {
        match self.0.field.as_str() {
            "" => self.0.message.clone(),
            field => format!("{field}: {}", self.0.message),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.place {
            Place::File { path, line, .. } => write!(f, "{}:{line}: ", path.display())?,
            Place::Env(name) => write!(f, "environment variable {name}: ")?,
            Place::Flag(name) => write!(f, "flag {name}: ")?,
            Place::Nowhere => {}
        }
        f.write_str(&self.bare())
    }
}

impl std::error::Error for ConfigError {}

impl Diagnostic for ConfigError {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(&self.0.remedy))
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        match &self.0.place {
            Place::File { .. } => Some(self),
            _ => None,
        }
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        match &self.0.place {
            Place::File { start, len, .. } => {
                Some(Box::new(std::iter::once(LabeledSpan::at(*start..*start + *len, "here"))))
            }
            _ => None,
        }
    }
}

impl SourceCode for ConfigError {
    fn read_span<'a>(
        &'a self,
        span: &miette::SourceSpan,
        before: usize,
        after: usize,
    ) -> Result<Box<dyn miette::SpanContents<'a> + 'a>, miette::MietteError> {
        let Place::File { path, text, .. } = &self.0.place else {
            return Err(miette::MietteError::OutOfBounds);
        };
        let found = text.read_span(span, before, after)?;
        let named = miette::MietteSpanContents::new_named(
            path.display().to_string(),
            found.data(),
            *found.span(),
            found.line(),
            found.column(),
            found.line_count(),
        );
        Ok(Box::new(named))
    }
}

/// A complaint that does not know yet where its value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// What is wrong with it and why that matters.
    pub(super) message: String,
    /// What to write instead.
    pub(super) remedy: String,
}

/// Shorthand for a [`Wrong`].
pub(super) fn wrong(message: impl Into<String>, remedy: impl Into<String>) -> Wrong {
    Wrong { message: message.into(), remedy: remedy.into() }
}
