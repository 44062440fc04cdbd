//! The settings of a site: defaults, caps and the switch for all users of a node.
//!
//! * The path is part of the program: no variable of a user leads elsewhere.
//! * The file holds only if root owns it and its directory, and no other user may write to either.
//! * A mistake in it never keeps a job from running: all parts that can be read hold, and users get
//!   a line.

use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde_yaml::Value;

use super::caps::{Cap, Caps};
use super::error::{ConfigError, ErrorKind, Place, wrong};
use super::given::{Given, Kind, OrNone, Pattern, Rate};
use super::key::Key;
use super::locate::locate;
use super::raw::RawConfig;
use super::raw_site::{
    RawCaps, RawDatasetCaps, RawDrainCaps, RawIndexCaps, RawOutputCaps, RawSite, RawSourceCaps, RawTierCaps,
};
use super::source_text::SourceText;
use super::trusted;
use super::units::{MIB, TIB};

/// The file of the site.
pub const SITE_FILE: &str = "/etc/monarch/monarch.yaml";

/// Most bytes of the file.
const MAX_BYTES: u64 = 1 << 20;

/// The settings of a site.
#[derive(Clone, Debug, Default)]
pub struct SiteSettings {
    /// Why no job is served, in a line, while the site has switched Monarch off.
    pub off: Option<String>,
    /// What is wrong with the file.
    pub mistakes: Vec<ConfigError>,
    pub(super) caps: Caps,
    /// The text and its `defaults`.
    pub(super) defaults: Option<(SourceText, Value)>,
}

/// Reads the text of a site's file.
///
/// # Errors
/// Why the file is ignored. `Ok(None)`: there is none.
fn read(path: &Path) -> Result<Option<String>, String> {
    use std::io::Read;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    let st = rustix::fs::fstat(&file).map_err(|e| e.to_string())?;
    if st.st_mode & 0o170_000 != 0o100_000 {
        return Err("it is not a regular file".to_owned());
    }
    check_owner("it", &st)?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let above = rustix::fs::stat(dir).map_err(|e| e.to_string())?;
    check_owner(&format!("its directory {}", dir.display()), &above)?;
    let mut text = String::new();
    let read = std::fs::File::from(file).take(MAX_BYTES).read_to_string(&mut text);
    read.map_err(|e| e.to_string())?;
    Ok(Some(text))
}

/// Checks that only root can change something.
fn check_owner(what: &str, st: &Stat) -> Result<(), String> {
    if !trusted::is_root(st.st_uid) {
        return Err(format!("{what} belongs to user {}, not to root", st.st_uid));
    }
    if st.st_mode & 0o022 != 0 {
        return Err(format!("{what} can be written by its group or others (mode {:04o})", st.st_mode & 0o7777));
    }
    Ok(())
}

impl SiteSettings {
    /// The settings in [`SITE_FILE`] on this node, read now.
    #[must_use]
    pub fn load() -> Self {
        let path = Path::new(SITE_FILE);
        match read(path) {
            Ok(text) => text.map_or_else(Self::default, |text| Self::of(path, &text)),
            Err(why) => Self::ignored(path, &why),
        }
    }

    /// The settings in another file, whoever owns it, to check them before they are installed.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn check(path: &Path) -> std::io::Result<Self> {
        Ok(Self::of(path, &std::fs::read_to_string(path)?))
    }

    /// The settings of a text: all parts of it that can be read.
    pub(super) fn of(path: &Path, text: &str) -> Self {
        let source = SourceText { path: path.to_owned(), text: text.to_owned() };
        let mut site = Self::default();
        let tree: Value = match serde_yaml::from_str(text) {
            Ok(tree) => tree,
            Err(error) => {
                site.mistakes.push(source.bad_yaml(&error));
                return site;
            }
        };
        if tree.is_null() {
            return site;
        }
        if let Err(error) = serde_yaml::from_str::<RawSite>(text) {
            site.mistakes.push(source.bad_shape(&error));
        }
        let mut reading = Reading { source: &source, mistakes: &mut site.mistakes };
        let part = |name: &str| tree.get(name).cloned().unwrap_or(Value::Null);
        let raw: RawSite = RawSite {
            enabled: lenient(part("enabled")),
            reason: lenient(part("reason")),
            defaults: lenient(part("defaults")),
            caps: Some(raw_caps(&part("caps"))),
        };
        let is_off = reading.value("enabled", raw.enabled.as_ref()).is_some_and(|cap| !cap.value);
        let reason = reading.value("reason", raw.reason.as_ref()).map(|cap| cap.value);
        site.caps = reading.caps(&raw.caps.unwrap_or_default());
        site.off = is_off.then(|| {
            let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
            format!("the site has switched Monarch off in {}{reason}", path.display())
        });
        site.defaults = raw.defaults.map(|_: RawConfig| (source, part("defaults")));
        site
    }

    /// The settings of a site that has none.
    pub(super) fn ignored(path: &Path, why: &str) -> Self {
        let remedy = "make root the owner, and let others read and not write: `chown root:root` and \
                      `chmod go-w,a+rX`, for the directory as well";
        let message = format!("the settings of the site in {} are ignored: {why}", path.display());
        let mistake = ConfigError::new(ErrorKind::Exposed, "", wrong(message, remedy), Place::Nowhere);
        Self { mistakes: vec![mistake], ..Self::default() }
    }
}

/// A part of the file, if it has the right shape.
fn lenient<T: DeserializeOwned>(value: Value) -> Option<T> {
    if value.is_null() { None } else { serde_yaml::from_value(value).ok() }
}

/// The caps that have the right shape, one by one.
fn raw_caps(caps: &Value) -> RawCaps {
    let one = |section: &str, name: &str| caps.get(section).and_then(|s| s.get(name)).cloned().unwrap_or(Value::Null);
    RawCaps {
        source: Some(RawSourceCaps {
            max_inflight: lenient(one("source", "max_inflight")),
            bandwidth_limit: lenient(one("source", "bandwidth_limit")),
            iops_limit: lenient(one("source", "iops_limit")),
        }),
        tiers: Some(RawTierCaps {
            capacity: lenient(one("tiers", "capacity")),
            total_capacity: lenient(one("tiers", "total_capacity")),
        }),
        index: Some(RawIndexCaps { max_memory: lenient(one("index", "max_memory")) }),
        dataset: Some(RawDatasetCaps { forbidden_roots: lenient(one("dataset", "forbidden_roots")) }),
        outputs: Some(RawOutputCaps {
            forbidden_roots: lenient(one("outputs", "forbidden_roots")),
            max_pending: lenient(one("outputs", "max_pending")),
        }),
        drain: Some(RawDrainCaps { bandwidth_limit: lenient(one("drain", "bandwidth_limit")) }),
    }
}

/// The reading of values, with the mistakes so far.
struct Reading<'a> {
    source: &'a SourceText,
    mistakes: &'a mut Vec<ConfigError>,
}

impl Reading<'_> {
    fn caps(&mut self, raw: &RawCaps) -> Caps {
        let (source, tiers) = (raw.source.as_ref(), raw.tiers.as_ref());
        let (outputs, drain) = (raw.outputs.as_ref(), raw.drain.as_ref());
        let forbidden = raw.dataset.as_ref().and_then(|d| d.forbidden_roots.as_deref());
        let forbidden_outputs = outputs.and_then(|o| o.forbidden_roots.as_deref());
        let size = |me: &mut Self, key, given| me.within(key, given, MIB..=u64::MAX);
        let limit = |me: &mut Self, key: &str, given: Option<&Given<OrNone<Rate>>>| {
            let cap = me.value(key, given)?;
            let value = cap.value?;
            me.bounded(key, Cap { value, line: cap.line }, MIB..=TIB)
        };
        let max_inflight =
            self.within("caps.source.max_inflight", source.and_then(|s| s.max_inflight.as_ref()), 1..=1024);
        let bandwidth_limit =
            limit(self, "caps.source.bandwidth_limit", source.and_then(|s| s.bandwidth_limit.as_ref()));
        let iops_limit = self
            .value("caps.source.iops_limit", source.and_then(|s| s.iops_limit.as_ref()))
            .and_then(|cap| Some(Cap { value: cap.value?, line: cap.line }))
            .and_then(|cap| self.bounded("caps.source.iops_limit", cap, 1..=1_000_000));
        Caps {
            max_inflight,
            bandwidth_limit,
            iops_limit,
            tier_capacity: size(self, "caps.tiers.capacity", tiers.and_then(|t| t.capacity.as_ref())),
            total_capacity: size(self, "caps.tiers.total_capacity", tiers.and_then(|t| t.total_capacity.as_ref())),
            index_memory: size(self, "caps.index.max_memory", raw.index.as_ref().and_then(|i| i.max_memory.as_ref())),
            forbidden_roots: self.patterns("caps.dataset.forbidden_roots", forbidden),
            drain_bandwidth: limit(self, "caps.drain.bandwidth_limit", drain.and_then(|d| d.bandwidth_limit.as_ref())),
            max_pending: size(self, "caps.outputs.max_pending", outputs.and_then(|o| o.max_pending.as_ref())),
            forbidden_outputs: self.patterns("caps.outputs.forbidden_roots", forbidden_outputs),
        }
    }

    /// Those of a list of patterns that are right.
    fn patterns(&mut self, key: &str, given: Option<&[Given<Pattern>]>) -> Vec<Cap<String>> {
        let each = given.unwrap_or_default().iter().enumerate();
        each.filter_map(|(at, given)| self.value(&format!("{key}[{at}]"), Some(given))).collect()
    }

    /// A value with its line, if it is given and right.
    fn value<K: Kind>(&mut self, key: &str, given: Option<&Given<K>>) -> Option<Cap<K::Out>> {
        let key = Key::new(key);
        let spot = locate(&self.source.text, &key);
        match K::parse(&given?.0) {
            Ok(value) => Some(Cap { value, line: spot.map_or(1, |spot| spot.line) }),
            Err((kind, wrong)) => {
                let place = spot.map_or(Place::Nowhere, |spot| self.source.place(spot));
                self.mistakes.push(ConfigError::new(kind, &key, wrong, place));
                None
            }
        }
    }

    fn within<K: Kind>(
        &mut self,
        key: &str,
        given: Option<&Given<K>>,
        bounds: RangeInclusive<K::Out>,
    ) -> Option<Cap<K::Out>>
    where
        K::Out: PartialOrd,
    {
        let cap = self.value(key, given)?;
        self.bounded(key, cap, bounds)
    }

    fn bounded<T: PartialOrd>(&mut self, key: &str, cap: Cap<T>, bounds: RangeInclusive<T>) -> Option<Cap<T>> {
        if bounds.contains(&cap.value) {
            return Some(cap);
        }
        let key = Key::new(key);
        let place = locate(&self.source.text, &key).map_or(Place::Nowhere, |spot| self.source.place(spot));
        let wrong = wrong(
            "no setting can have this value, so it is no cap",
            "write a value that the setting may have: docs/site.schema.json names the bounds",
        );
        self.mistakes.push(ConfigError::new(ErrorKind::OutOfBounds, &key, wrong, place));
        None
    }
}

/// What changes when the file is written, replaced, removed, or given other rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteStamp([Option<Seen>; 2]);

/// What changes when a file or a directory does: any change of its rights sets its change time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    file: (u64, u64),
    changed: (i64, i64),
    size: u64,
}

impl SiteStamp {
    /// The stamp of the file as it is now: two `stat` calls on the file and its directory.
    #[must_use]
    pub fn now() -> Self {
        let file = Path::new(SITE_FILE);
        let of = |path: &Path| {
            let st = std::fs::metadata(path).ok()?;
            Some(Seen { file: (st.dev(), st.ino()), changed: (st.ctime(), st.ctime_nsec()), size: st.size() })
        };
        Self([of(file), of(file.parent().unwrap_or(file))])
    }
}
