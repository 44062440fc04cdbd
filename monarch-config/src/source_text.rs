//! The text of a configuration file, and mistakes in it with their place.

use std::path::PathBuf;

use super::error::{ConfigError, ErrorKind, Place, wrong};
use super::key::Key;
use super::locate::{Spot, locate, token};
use super::shape::{explain, strip_position};

/// A configuration file that was read.
#[derive(Clone, Debug)]
pub(super) struct SourceText {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl SourceText {
    /// The mistake of a text that is not YAML.
    pub(super) fn bad_yaml(&self, error: &serde_yaml::Error) -> ConfigError {
        let message = error.to_string();
        let line =
            error.location().and_then(|at| self.text.lines().nth(at.line().saturating_sub(1))).unwrap_or_default();
        let remedy = if line.contains('\t') {
            "YAML is indented with spaces, and this line has a tab"
        } else if message.contains("duplicate") {
            "keep one of the two"
        } else {
            "check indentation, brackets and quotes here and on the line above"
        };
        let wrong = wrong(format!("not valid YAML: {}", strip_position(&message)), remedy);
        ConfigError::new(ErrorKind::Syntax, "", wrong, self.place_of(error))
    }

    /// The mistake of a text that has other keys or kinds of values than a configuration.
    pub(super) fn bad_shape(&self, error: &serde_yaml::Error) -> ConfigError {
        let shape = explain(error);
        // serde names the section: the old name is the line to take out.
        let old = shape.twice.and_then(|setting| locate(&self.text, &Key::new(&shape.field).name(setting.old)));
        let place = old.map_or_else(|| self.place_of(error), |spot| self.place(spot));
        ConfigError::new(shape.kind, shape.field, shape.wrong, place)
    }

    /// The place of a position.
    pub(super) fn place(&self, spot: Spot) -> Place {
        let (start, len) = token(&self.text, spot);
        Place::File { path: self.path.clone(), text: self.text.clone(), line: spot.line, start, len }
    }

    fn place_of(&self, error: &serde_yaml::Error) -> Place {
        let first = Spot { line: 1, column: 1 };
        self.place(error.location().map_or(first, |at| Spot { line: at.line(), column: at.column() }))
    }
}
