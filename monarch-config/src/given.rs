//! A scalar as it was written, and the kind of value that it stands for.
//!
//! A scalar is read in two steps. [`Given`] takes any YAML scalar and keeps its text, so that serde
//! fails only on the *shape* of the file. [`Kind::parse`] gives the text its meaning later, when
//! the name of the setting, its origin and its bounds are known.
//! The kind also describes itself to the JSON schema and writes its values back, so reading, schema
//! and `config show` cannot drift apart.

mod network;

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Visitor};

pub(super) use network::{Domain, Endpoint, Hosts, Listener, Part};

use super::error::{ErrorKind, wrong};
use super::model::Amount;
use super::units::{self, Parsed};

/// A kind of value.
pub(super) trait Kind: 'static {
    /// The value as meant.
    type Out;
    /// Reads the text.
    fn parse(text: &str) -> Parsed<Self::Out>;
    /// Writes a value so that `parse` reads it back.
    fn show(value: &Self::Out) -> String;
    /// What the JSON schema says.
    fn schema() -> Schema;
}

/// The text of a scalar of kind `K`.
#[derive(Clone, Debug)]
pub(super) struct Given<K>(pub(super) String, PhantomData<K>);

impl<'de, K> Deserialize<'de> for Given<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar).map(|text| Self(text, PhantomData))
    }
}

impl<K: Kind> JsonSchema for Given<K> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        std::any::type_name::<K>().into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        K::schema()
    }
}

/// Takes every scalar as text.
struct Scalar;

impl Visitor<'_> for Scalar {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a single value")
    }
    fn visit_bool<E: Error>(self, value: bool) -> Result<String, E> {
        Ok(value.to_string())
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<String, E> {
        Ok(value.to_string())
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<String, E> {
        Ok(value.to_string())
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<String, E> {
        Ok(value.to_string())
    }
    fn visit_str<E: Error>(self, value: &str) -> Result<String, E> {
        Ok(value.trim().to_owned())
    }
}

/// Bytes.
#[derive(Clone, Debug)]
pub(super) struct Size;

impl Kind for Size {
    type Out = u64;
    fn parse(text: &str) -> Parsed<u64> {
        units::size(text)
    }
    fn show(value: &u64) -> String {
        units::exact(*value)
    }
    fn schema() -> Schema {
        json_schema!({ "type": ["string", "integer"], "pattern": r"^[0-9.]+ ?([kKMGTP](i?B)?|B)$|^0$", "maximum": 0, "examples": ["4MiB", "400GiB"] })
    }
}

/// A size, or a share of something.
#[derive(Clone, Debug)]
pub(super) struct SizeOrShare;

impl Kind for SizeOrShare {
    type Out = Amount;
    fn parse(text: &str) -> Parsed<Amount> {
        units::percent(text).map_or_else(|| units::size(text).map(Amount::Bytes), |share| share.map(Amount::Share))
    }
    fn show(value: &Amount) -> String {
        match value {
            Amount::Bytes(bytes) => units::exact(*bytes),
            Amount::Share(share) => format!("{}%", share * 100.0),
        }
    }
    fn schema() -> Schema {
        json_schema!({ "type": ["string", "integer"], "pattern": r"^[0-9.]+ ?([kKMGTP](i?B)?|B|%)$|^0$", "maximum": 0, "examples": ["5%", "1GiB"] })
    }
}

/// Bytes per second.
#[derive(Clone, Debug)]
pub(super) struct Rate;

impl Kind for Rate {
    type Out = u64;
    fn parse(text: &str) -> Parsed<u64> {
        units::rate(text)
    }
    fn show(value: &u64) -> String {
        format!("{}/s", units::exact(*value))
    }
    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": r"^[0-9.]+ ?([kKMGTP](i?B)?|B)/s$", "examples": ["500MiB/s"] })
    }
}

/// A duration.
#[derive(Clone, Debug)]
pub(super) struct Time;

impl Kind for Time {
    type Out = Duration;
    fn parse(text: &str) -> Parsed<Duration> {
        units::duration(text)
    }
    fn show(value: &Duration) -> String {
        units::time(*value)
    }
    fn schema() -> Schema {
        json_schema!({ "type": ["string", "integer"], "pattern": r"^([0-9]+ ?(ns|us|ms|s|sec|m|min|h|d) ?)+$", "maximum": 0, "examples": ["50ms", "2s", "30d"] })
    }
}

/// A percentage, as a fraction.
#[derive(Clone, Debug)]
pub(super) struct Share;

impl Kind for Share {
    type Out = f64;
    fn parse(text: &str) -> Parsed<f64> {
        let complaint = || wrong(format!("`{text}` is not a percentage"), "write more than 0% and at most 100%");
        units::percent(text).and_then(Result::ok).ok_or_else(|| (ErrorKind::WrongUnit, complaint()))
    }
    fn show(value: &f64) -> String {
        format!("{}%", value * 100.0)
    }
    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": r"^[0-9.]+ ?%$", "examples": ["30%"] })
    }
}

/// A whole number.
#[derive(Clone, Debug)]
pub(super) struct Count;

impl Kind for Count {
    type Out = usize;
    fn parse(text: &str) -> Parsed<usize> {
        let complaint =
            || wrong(format!("`{text}` is not a whole number"), "write a whole number without a unit, such as 64");
        text.parse().map_err(|_| (ErrorKind::WrongType, complaint()))
    }
    fn show(value: &usize) -> String {
        value.to_string()
    }
    fn schema() -> Schema {
        json_schema!({ "type": "integer", "minimum": 0 })
    }
}

/// How many times smaller.
#[derive(Clone, Debug)]
pub(super) struct Ratio;

impl Kind for Ratio {
    type Out = f64;
    fn parse(text: &str) -> Parsed<f64> {
        let complaint = || wrong(format!("`{text}` is not a number"), "write a number such as 1.2");
        text.parse().ok().filter(|n: &f64| n.is_finite()).ok_or_else(|| (ErrorKind::WrongType, complaint()))
    }
    fn show(value: &f64) -> String {
        value.to_string()
    }
    fn schema() -> Schema {
        json_schema!({ "type": "number", "minimum": 1, "maximum": 100 })
    }
}

/// Yes or no.
#[derive(Clone, Debug)]
pub(super) struct Toggle;

impl Kind for Toggle {
    type Out = bool;
    fn parse(text: &str) -> Parsed<bool> {
        let complaint = || wrong(format!("`{text}` is neither true nor false"), "write true or false");
        text.parse().map_err(|_| (ErrorKind::WrongType, complaint()))
    }
    fn show(value: &bool) -> String {
        value.to_string()
    }
    fn schema() -> Schema {
        json_schema!({ "type": "boolean" })
    }
}

/// A path, taken as it is: no `~`, no variables.
#[derive(Clone, Debug)]
pub(super) struct Location;

impl Kind for Location {
    type Out = PathBuf;
    fn parse(text: &str) -> Parsed<PathBuf> {
        Ok(PathBuf::from(text))
    }
    fn show(value: &PathBuf) -> String {
        value.display().to_string()
    }
    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^/" })
    }
}

/// A name.
#[derive(Clone, Debug)]
pub(super) struct Name;

impl Kind for Name {
    type Out = String;
    fn parse(text: &str) -> Parsed<String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if (1..=32).contains(&text.len()) && text.chars().all(plain) {
            return Ok(text.to_owned());
        }
        let rule = "write 1 to 32 letters, digits, `-` or `_`, such as nvme";
        Err((ErrorKind::BadTier, wrong(format!("`{text}` cannot be the name of a tier"), rule)))
    }
    fn show(value: &String) -> String {
        value.clone()
    }
    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[A-Za-z0-9_-]{1,32}$" })
    }
}

/// A value of kind `K`, or `none`.
#[derive(Clone, Debug)]
pub(super) struct OrNone<K>(PhantomData<K>);

impl<K: Kind> Kind for OrNone<K> {
    type Out = Option<K::Out>;
    fn parse(text: &str) -> Parsed<Self::Out> {
        match text {
            "none" => Ok(None),
            text => K::parse(text).map(Some).map_err(|(kind, mut wrong)| {
                if !wrong.remedy.contains("none") {
                    wrong.remedy.push_str(", or none");
                }
                (kind, wrong)
            }),
        }
    }
    fn show(value: &Self::Out) -> String {
        value.as_ref().map_or_else(|| "none".to_owned(), K::show)
    }
    fn schema() -> Schema {
        json_schema!({ "anyOf": [K::schema(), { "const": "none" }] })
    }
}

/// A text for people.
#[derive(Clone, Debug)]
pub(super) struct Text;

impl Kind for Text {
    type Out = String;
    fn parse(text: &str) -> Parsed<String> {
        Ok(text.to_owned())
    }
    fn show(value: &String) -> String {
        value.clone()
    }
    fn schema() -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// A pattern of file names, as a shell has them.
#[derive(Clone, Debug)]
pub(super) struct NamePattern;

impl Kind for NamePattern {
    type Out = String;
    fn parse(text: &str) -> Parsed<String> {
        if !text.is_empty() && !text.contains(['/', '\0']) {
            return Ok(text.to_owned());
        }
        let rule = "write a name without a directory, such as *.log; it holds at any depth";
        Err((ErrorKind::OutOfBounds, wrong(format!("`{text}` is not a pattern of file names"), rule)))
    }
    fn show(value: &String) -> String {
        value.clone()
    }
    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[^/]+$" })
    }
}

/// An absolute path whose names may have `*` and `?`.
#[derive(Clone, Debug)]
pub(super) struct Pattern;

impl Kind for Pattern {
    type Out = String;
    fn parse(text: &str) -> Parsed<String> {
        let names = text.strip_prefix('/').filter(|names| !names.is_empty());
        if names
            .is_some_and(|names| names.trim_end_matches('/').split('/').all(|n| !matches!(n, "" | "." | ".." | "**")))
        {
            return Ok(text.trim_end_matches('/').to_owned());
        }
        let rule = "write an absolute path without `.`, `..` and `**`, such as /home or /scratch/*/private";
        Err((ErrorKind::OutOfBounds, wrong(format!("`{text}` is not a pattern of directories"), rule)))
    }
    fn show(value: &String) -> String {
        value.clone()
    }
    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^/." })
    }
}
