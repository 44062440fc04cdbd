//! Options that can change while the mount is up: as sent ([`Settings`]) and as used by the server
//! ([`Live`]).

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{Rate, Time, string_conversions};

/// What the kernel may keep of file contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CacheMode {
    /// Nothing: each `read` is one READ of its size. `mmap(MAP_SHARED)` needs Linux 6.6 (else
    /// `ENODEV`); mapped pages are cached while mapped.
    Direct,
    /// The page cache, dropped at each open.
    #[default]
    NoKeep,
    /// The page cache, kept across opens until attributes show a change.
    Keep,
}

impl FromStr for CacheMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "direct" => Ok(Self::Direct),
            "nokeep" => Ok(Self::NoKeep),
            "keep" => Ok(Self::Keep),
            _ => Err(format!("{text:?} is no cache mode (direct, nokeep, keep)")),
        }
    }
}

impl fmt::Display for CacheMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::NoKeep => "nokeep",
            Self::Keep => "keep",
        })
    }
}
string_conversions!(CacheMode);

/// A change of options; what is absent stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Latency of each metadata call (opens included).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_latency: Option<Time>,
    /// Latency of each read and write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_latency: Option<Time>,
    /// Bandwidth shared by all reads and writes; 0 is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Rate>,
    /// What the kernel may cache of files opened from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheMode>,
    /// How long attributes sent from now on may be cached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attr_ttl: Option<Time>,
    /// How long names sent from now on may be cached; follows `attr_ttl` until set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_ttl: Option<Time>,
    /// Whether each close sends a FLUSH that costs a metadata latency (for files opened from now
    /// on).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush: Option<bool>,
}

/// Marks `entry_ttl` as following `attr_ttl`.
const FOLLOWS_ATTR_TTL: u64 = u64::MAX;

/// The options in force, read by every request without a lock.
pub(crate) struct Live {
    meta_latency: AtomicU64,
    data_latency: AtomicU64,
    bandwidth: AtomicU64,
    cache: AtomicU8,
    attr_ttl: AtomicU64,
    entry_ttl: AtomicU64,
    flush: AtomicBool,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            meta_latency: AtomicU64::new(0),
            data_latency: AtomicU64::new(0),
            bandwidth: AtomicU64::new(0),
            cache: AtomicU8::new(CacheMode::default() as u8),
            attr_ttl: AtomicU64::new(1_000_000_000),
            entry_ttl: AtomicU64::new(FOLLOWS_ATTR_TTL),
            flush: AtomicBool::new(false),
        }
    }
}

fn nanos(time: Time) -> u64 {
    u64::try_from(time.0.as_nanos()).unwrap_or(FOLLOWS_ATTR_TTL - 1)
}

impl Live {
    /// Takes over what `settings` names.
    pub(crate) fn apply(&self, settings: &Settings) {
        let store = |target: &AtomicU64, value: Option<u64>| {
            if let Some(value) = value {
                target.store(value, Relaxed);
            }
        };
        store(&self.meta_latency, settings.meta_latency.map(nanos));
        store(&self.data_latency, settings.data_latency.map(nanos));
        store(&self.bandwidth, settings.bandwidth.map(|rate| rate.0));
        store(&self.attr_ttl, settings.attr_ttl.map(nanos));
        store(&self.entry_ttl, settings.entry_ttl.map(nanos));
        if let Some(cache) = settings.cache {
            self.cache.store(cache as u8, Relaxed);
        }
        if let Some(flush) = settings.flush {
            self.flush.store(flush, Relaxed);
        }
    }

    /// All options, for the control socket.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            meta_latency: Some(Time(self.meta_latency())),
            data_latency: Some(Time(self.data_latency())),
            bandwidth: Some(Rate(self.bandwidth())),
            cache: Some(self.cache()),
            attr_ttl: Some(Time(self.attr_ttl())),
            entry_ttl: Some(Time(self.entry_ttl())),
            flush: Some(self.flush()),
        }
    }

    pub(crate) fn meta_latency(&self) -> Duration {
        Duration::from_nanos(self.meta_latency.load(Relaxed))
    }

    pub(crate) fn data_latency(&self) -> Duration {
        Duration::from_nanos(self.data_latency.load(Relaxed))
    }

    /// Bytes per second; 0 is unlimited.
    pub(crate) fn bandwidth(&self) -> u64 {
        self.bandwidth.load(Relaxed)
    }

    pub(crate) fn cache(&self) -> CacheMode {
        match self.cache.load(Relaxed) {
            0 => CacheMode::Direct,
            1 => CacheMode::NoKeep,
            _ => CacheMode::Keep,
        }
    }

    pub(crate) fn attr_ttl(&self) -> Duration {
        Duration::from_nanos(self.attr_ttl.load(Relaxed))
    }

    pub(crate) fn entry_ttl(&self) -> Duration {
        match self.entry_ttl.load(Relaxed) {
            FOLLOWS_ATTR_TTL => self.attr_ttl(),
            ttl => Duration::from_nanos(ttl),
        }
    }

    pub(crate) fn flush(&self) -> bool {
        self.flush.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_ttl_follows_attr_ttl_until_set() {
        let live = Live::default();
        let second = Duration::from_secs(1);
        live.apply(&Settings { attr_ttl: Some(Time(second * 5)), ..Settings::default() });
        assert_eq!((live.attr_ttl(), live.entry_ttl()), (second * 5, second * 5));
        live.apply(&Settings { entry_ttl: Some(Time(second)), cache: Some(CacheMode::Keep), ..Settings::default() });
        assert_eq!((live.attr_ttl(), live.entry_ttl(), live.cache()), (second * 5, second, CacheMode::Keep));
    }
}
