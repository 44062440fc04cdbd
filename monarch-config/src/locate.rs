//! Finds the line of a value in a YAML text.
//!
//! serde gives values without positions, but its YAML errors have one. So a visitor walks to the
//! node and refuses it, and the error has its position. The parser that reads the file is also the
//! one that locates, so quotes, flow style and anchors cannot make the two disagree. Each walk
//! parses the text again; configurations are small.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::key::{Key, Step};

/// A position in a text; line and column count from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// The line.
    pub(super) line: usize,
    /// The column.
    pub(super) column: usize,
}

/// Where the node at `key` begins, if the text has it.
pub(super) fn locate(text: &str, key: &Key) -> Option<Spot> {
    let error = Refuse(&key.0).deserialize(serde_yaml::Deserializer::from_str(text)).err()?;
    let location = error.location()?;
    Some(Spot { line: location.line(), column: location.column() })
}

/// The bytes of the token that begins at `spot`, as start and length; a quoted or plain scalar, or
/// one character.
pub(super) fn token(text: &str, spot: Spot) -> (usize, usize) {
    let before: usize = text.split_inclusive('\n').take(spot.line.saturating_sub(1)).map(str::len).sum();
    let line = text[before..].lines().next().unwrap_or("");
    let column = line.char_indices().nth(spot.column.saturating_sub(1)).map_or(line.len(), |(at, _)| at);
    let rest = &line[column..];
    let len = match rest.chars().next() {
        Some(quote @ ('"' | '\'')) => rest[1..].find(quote).map_or(rest.len(), |end| end + 2),
        Some('[' | '{' | '-') => rest.len(),
        _ => plain_end(rest),
    };
    (before + column, rest[..len].trim_end().len())
}

/// Where a plain scalar or a key ends: at `: `, at a comment, at what ends an element in flow
/// style.
fn plain_end(rest: &str) -> usize {
    let ends = [": ", " #", ",", "]", "}"];
    ends.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len())
}

/// Walks down the steps and refuses the node at their end.
struct Refuse<'k>(&'k [Step]);

impl<'de> DeserializeSeed<'de> for Refuse<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Scalars are refused by the provided methods, wherever the walk meets them.
impl<'de> Visitor<'de> for Refuse<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let [Step::Name(name), rest @ ..] = self.0 else {
            return Err(A::Error::custom("here"));
        };
        while let Some(key) = map.next_key::<serde_yaml::Value>()? {
            if key.as_str() == Some(name) {
                return map.next_value_seed(Refuse(rest));
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let [Step::Index(index), rest @ ..] = self.0 else {
            return Err(A::Error::custom("here"));
        };
        for _ in 0..*index {
            if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        seq.next_element_seed(Refuse(rest)).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# é\ndataset: { roots: [/a, \"/b c\"] }\ntiers:\n  - name: x\n    path: /p # why\n";

    #[track_caller]
    fn check(key: &str, line: usize, text: &str) {
        let spot = locate(TEXT, &Key::new(key)).unwrap();
        let (start, len) = token(TEXT, spot);
        assert_eq!((spot.line, &TEXT[start..start + len]), (line, text), "{key}");
    }

    #[test]
    fn finds_scalars_and_containers_in_both_styles() {
        check("dataset.roots[0]", 2, "/a");
        check("dataset.roots[1]", 2, "\"/b c\"");
        check("dataset.roots", 2, "[/a, \"/b c\"] }");
        check("tiers[0].path", 5, "/p");
        check("tiers[0]", 4, "name");
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        assert_eq!(locate(TEXT, &Key::new("tiers[0].capacity")), None);
        assert_eq!(locate(TEXT, &Key::new("tiers[3].name")), None);
    }
}
