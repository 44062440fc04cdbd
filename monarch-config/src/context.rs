//! What every rule needs: the value with its default and bounds, the place for its error, the
//! machine to ask.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::caps::{Cap, Caps};
use super::error::{ConfigError, ErrorKind, Wrong, wrong};
use super::given::{Given, Kind};
use super::key::Key;
use super::layers::Layers;
use super::origin::Origin;
use super::probe::Probe;
use super::site_file::SITE_FILE;

/// The state of one resolution.
pub(super) struct Context<'a> {
    pub(super) layers: Layers,
    pub(super) probe: &'a dyn Probe,
    pub(super) caps: Caps,
    /// Why roots are not served that the site forbids, one line each.
    pub(super) forbidden: Vec<String>,
}

impl Context<'_> {
    /// An error about `key`, at the place where its value was written.
    pub(super) fn error(
        &self,
        kind: ErrorKind,
        key: &Key,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ConfigError {
        self.complain(kind, key, wrong(message, remedy))
    }

    fn complain(&self, kind: ErrorKind, key: &Key, wrong: Wrong) -> ConfigError {
        ConfigError::new(kind, key, wrong, self.layers.place(key))
    }

    /// Something that works, and that the user should know.
    pub(super) fn warn(&mut self, key: &Key, message: impl Display) {
        let text = match self.layers.origins.get(key) {
            Origin::Default | Origin::Derived(_) => format!("{key}: {message}"),
            origin => format!("{origin}: {key}: {message}"),
        };
        self.layers.warnings.push(text);
    }

    /// Notes how a default was worked out.
    pub(super) fn derived(&mut self, key: &Key, how: impl Into<String>) {
        self.layers.origins.set(key.clone(), Origin::Derived(how.into()));
    }

    /// A value, lowered to a cap of the site that it exceeds. A user who gave it gets a line.
    pub(super) fn capped<T: PartialOrd + Copy>(
        &mut self,
        key: &Key,
        value: T,
        cap: Option<&Cap<T>>,
        show: impl Fn(&T) -> String,
    ) -> T {
        match cap {
            Some(cap) if value > cap.value => {
                self.lower(key, &show(&value), &show(&cap.value), cap.line);
                cap.value
            }
            _ => value,
        }
    }

    /// As [`capped`](Self::capped), for a limit, of which `None` exceeds every cap.
    pub(super) fn capped_limit<T: PartialOrd + Copy>(
        &mut self,
        key: &Key,
        value: Option<T>,
        cap: Option<&Cap<T>>,
        show: impl Fn(&T) -> String,
    ) -> Option<T> {
        match (value, cap) {
            (Some(value), _) => Some(self.capped(key, value, cap, show)),
            (None, Some(cap)) => {
                self.lower(key, "none", &show(&cap.value), cap.line);
                Some(cap.value)
            }
            (None, None) => None,
        }
    }

    fn lower(&mut self, key: &Key, value: &str, cap: &str, line: usize) {
        let given = self.layers.origins.get(key).clone();
        if !matches!(given, Origin::Default | Origin::Derived(_) | Origin::Site { .. }) {
            let message = format!("{value} is lowered to {cap}, the cap of this site ({SITE_FILE}:{line})");
            self.warn(key, message);
        }
        self.layers.origins.set(key.clone(), Origin::Capped { given: Box::new(given), line });
    }

    /// The value of a scalar, if it was given.
    pub(super) fn get<K: Kind>(&self, key: &Key, given: Option<&Given<K>>) -> Result<Option<K::Out>, ConfigError> {
        given.map(|given| K::parse(&given.0)).transpose().map_err(|(kind, wrong)| self.complain(kind, key, wrong))
    }

    /// The value of a scalar or its default.
    pub(super) fn or<K: Kind>(
        &self,
        key: &str,
        given: Option<&Given<K>>,
        default: K::Out,
    ) -> Result<K::Out, ConfigError> {
        Ok(self.get(&Key::new(key), given)?.unwrap_or(default))
    }

    /// The value of a scalar or its default, within its bounds.
    pub(super) fn within<K: Kind>(
        &self,
        key: &str,
        given: Option<&Given<K>>,
        default: K::Out,
        bounds: RangeInclusive<K::Out>,
    ) -> Result<K::Out, ConfigError>
    where
        K::Out: PartialOrd,
    {
        let fallback = K::show(&default);
        let value = self.or(key, given, default)?;
        if bounds.contains(&value) {
            return Ok(value);
        }
        let (low, high) = (K::show(bounds.start()), K::show(bounds.end()));
        let shown = given.map_or(String::new(), |given| given.0.clone());
        let side = if value < *bounds.start() {
            format!("below the least allowed, {low}")
        } else {
            format!("above the most allowed, {high}")
        };
        let remedy = format!("write a value from {low} to {high}; the default is {fallback}");
        Err(self.error(ErrorKind::OutOfBounds, &Key::new(key), format!("{shown} is {side}"), remedy))
    }

    /// As [`within`](Self::within), for a limit that may be `none`, its default.
    pub(super) fn limit<K: Kind>(
        &self,
        key: &str,
        given: Option<&Given<super::given::OrNone<K>>>,
        bounds: RangeInclusive<K::Out>,
    ) -> Result<Option<K::Out>, ConfigError>
    where
        K::Out: PartialOrd,
    {
        let Some(value) = self.or(key, given, None)? else {
            return Ok(None);
        };
        if bounds.contains(&value) {
            return Ok(Some(value));
        }
        let (low, high) = (K::show(bounds.start()), K::show(bounds.end()));
        let message = format!("{} is not from {low} to {high}", K::show(&value));
        Err(self.error(
            ErrorKind::OutOfBounds,
            &Key::new(key),
            message,
            format!("write a value from {low} to {high}, or none"),
        ))
    }
}
