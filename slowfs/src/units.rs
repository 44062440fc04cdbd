//! Durations and rates as people write them (`1ms`, `115MiB/s`), on the command line and in JSON
//! alike.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A duration written like `500us`, `1ms` or `2s`; a bare `0` is allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Time(pub Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "0" {
            return Ok(Self::default());
        }
        humantime::parse_duration(text)
            .map(Self)
            .map_err(|e| format!("{text:?} is no duration (try 500us, 1ms, 2s): {e}"))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

/// Bytes per second, written like `115MiB/s`, `115MiB` or `0` (no limit).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate(pub u64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = text.strip_suffix("/s").unwrap_or(text);
        let size =
            bytes.parse::<bytesize::ByteSize>().map_err(|e| format!("{text:?} is no rate (try 115MiB/s): {e}"))?;
        Ok(Self(size.as_u64()))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B/s", self.0)
    }
}

macro_rules! string_conversions {
    ($($type:ty),*) => {$(
        impl TryFrom<String> for $type {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    )*};
}
pub(crate) use string_conversions;
string_conversions!(Time, Rate);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_round_trip() {
        assert_eq!("1ms".parse(), Ok(Time(Duration::from_millis(1))));
        assert_eq!("0".parse(), Ok(Time::default()));
        assert_eq!("115MiB/s".parse(), Ok(Rate(115 << 20)));
        assert_eq!(Rate(5).to_string().parse(), Ok(Rate(5)));
        assert!("fast".parse::<Time>().is_err());
        assert!("fast".parse::<Rate>().is_err());
    }
}
