//! Fault rules: which calls fail, how, and how often.
//!
//! Rules are tried in the order of their installation; the first that matches and is neither
//! waiting (`after`) nor used up (`count`) decides. Without rules the check is one atomic load, and
//! no path is computed.

use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::counters::Op;
use crate::glob;
use crate::units::{Time, string_conversions};

/// What a rule does to a call. Written `eio`, `estale`, `errno:28`, `stall`, `stall:2s`,
/// `short_read:100`, `zeros`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FaultKind {
    /// The call is not done and answers this errno.
    Errno(i32),
    /// The call is done, but its answer is held back for this long, or until the rules are cleared
    /// or the mount ends.
    Stall(Option<Duration>),
    /// A read returns at most this many bytes. (With a cache mode other than direct the kernel
    /// takes a short read for the end of the file.)
    ShortRead(u32),
    /// A read returns zeros, as many as there are bytes; attributes stay as they are. A
    /// client that still gets the bytes has them from elsewhere.
    Zeros,
}

impl FaultKind {
    /// Input/output error.
    pub const EIO: Self = Self::Errno(libc::EIO);
    /// Stale file handle.
    pub const ESTALE: Self = Self::Errno(libc::ESTALE);
    /// Held back until released.
    pub const STALL: Self = Self::Stall(None);

    /// Whether it is about what reads return, and so about no other call.
    const fn is_of_reads(self) -> bool {
        matches!(self, Self::ShortRead(_) | Self::Zeros)
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, value) = text.split_once(':').map_or((text, None), |(kind, value)| (kind, Some(value)));
        let number =
            || value.and_then(|v| v.parse::<u32>().ok()).ok_or_else(|| format!("{text:?}: a number is missing"));
        match (kind, value) {
            ("eio", None) => Ok(Self::EIO),
            ("estale", None) => Ok(Self::ESTALE),
            ("errno", _) => match number()? {
                errno @ 1..=4095 => Ok(Self::Errno(errno.cast_signed())),
                _ => Err(format!("{text:?}: an errno is between 1 and 4095")),
            },
            ("stall", None) => Ok(Self::STALL),
            ("stall", Some(time)) => Ok(Self::Stall(Some(time.parse::<Time>()?.0))),
            ("short_read", _) => Ok(Self::ShortRead(number()?)),
            ("zeros", None) => Ok(Self::Zeros),
            _ => Err(format!("{text:?} is no fault (eio, estale, errno:N, stall, stall:2s, short_read:N, zeros)")),
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::EIO => f.write_str("eio"),
            Self::ESTALE => f.write_str("estale"),
            Self::Errno(errno) => write!(f, "errno:{errno}"),
            Self::Stall(None) => f.write_str("stall"),
            Self::Stall(Some(time)) => {
                write!(f, "stall:{}", Time(time).to_string().replace(' ', ""))
            }
            Self::ShortRead(bytes) => write!(f, "short_read:{bytes}"),
            Self::Zeros => f.write_str("zeros"),
        }
    }
}
string_conversions!(FaultKind);

/// A fault rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    /// What happens.
    pub kind: FaultKind,
    /// To which operations; empty means all that answer.
    #[serde(default)]
    pub ops: Vec<Op>,
    /// To which paths, relative to the root: exact or with `?`, `*`, `**`; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// How many calls are hit; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// How many matching calls pass unharmed first.
    #[serde(default)]
    pub after: u64,
}

impl FaultSpec {
    /// A rule for every call on every path, without limit.
    pub fn new(kind: FaultKind) -> Self {
        Self { kind, ops: Vec::new(), path: None, count: None, after: 0 }
    }

    /// Only these operations.
    #[must_use]
    pub fn ops(mut self, ops: &[Op]) -> Self {
        self.ops = ops.to_vec();
        self
    }

    /// Only paths that match this pattern.
    #[must_use]
    pub fn path(mut self, pattern: impl Into<String>) -> Self {
        self.path = Some(pattern.into());
        self
    }

    /// Only this many calls.
    #[must_use]
    pub fn count(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    /// Not the first `after` matching calls.
    #[must_use]
    pub fn after(mut self, after: u64) -> Self {
        self.after = after;
        self
    }
}

/// A rule with what it has done so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultStatus {
    /// The rule.
    #[serde(flatten)]
    pub spec: FaultSpec,
    /// Calls that matched.
    pub seen: u64,
    /// Calls that were hit.
    pub hit: u64,
}

/// The rules of a running mount.
#[derive(Default)]
pub(crate) struct Rules {
    any: AtomicBool,
    rules: Mutex<Vec<FaultStatus>>,
}

impl Rules {
    /// Appends a rule.
    pub(crate) fn add(&self, spec: FaultSpec) {
        let mut rules = crate::lock::lock(&self.rules);
        rules.push(FaultStatus { spec, seen: 0, hit: 0 });
        self.any.store(true, Relaxed);
    }

    /// The rules and their counts.
    pub(crate) fn list(&self) -> Vec<FaultStatus> {
        crate::lock::lock(&self.rules).clone()
    }

    /// Removes all rules.
    pub(crate) fn clear(&self) {
        let mut rules = crate::lock::lock(&self.rules);
        self.any.store(false, Relaxed);
        rules.clear();
    }

    /// What happens to this call; `path` is only computed when there are rules.
    pub(crate) fn check(&self, op: Op, path: impl FnOnce() -> Option<String>) -> Option<FaultKind> {
        if !self.any.load(Relaxed) {
            return None;
        }
        let path = path();
        crate::lock::lock(&self.rules).iter_mut().find_map(|rule| rule.hits(op, path.as_deref()))
    }
}

impl FaultStatus {
    fn hits(&mut self, op: Op, path: Option<&str>) -> Option<FaultKind> {
        let spec = &self.spec;
        let applies = (spec.ops.is_empty() || spec.ops.contains(&op))
            && (op == Op::Read || !spec.kind.is_of_reads())
            && spec.path.as_ref().is_none_or(|pattern| path.is_some_and(|path| glob::matches(pattern, path)));
        if !applies {
            return None;
        }
        self.seen += 1;
        if self.seen <= spec.after || spec.count.is_some_and(|count| self.hit >= count) {
            return None;
        }
        self.hit += 1;
        Some(spec.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip() {
        for text in ["eio", "estale", "errno:28", "stall", "stall:2s", "short_read:100", "zeros"] {
            assert_eq!(text.parse::<FaultKind>().map(|kind| kind.to_string()), Ok(text.to_string()));
        }
        assert!("errno:0".parse::<FaultKind>().is_err());
        assert!("eio:5".parse::<FaultKind>().is_err());
        assert!("zeros:5".parse::<FaultKind>().is_err());
    }

    #[test]
    fn after_and_count_bound_a_rule() {
        let rules = Rules::default();
        rules.add(FaultSpec::new(FaultKind::EIO).ops(&[Op::Read]).path("a/*").after(1).count(2));
        let call = |op, path: &str| rules.check(op, || Some(path.to_string())).is_some();
        assert!(!call(Op::Open, "a/b") && !call(Op::Read, "b"));
        assert_eq!([(); 4].map(|()| call(Op::Read, "a/b")), [false, true, true, false]);
        assert_eq!(rules.list().first().map(|rule| (rule.seen, rule.hit)), Some((4, 2)));
        rules.clear();
        assert!(!call(Op::Read, "a/b"));
    }
}
