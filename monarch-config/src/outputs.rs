//! The output roots: they exist, none lies inside another, and each has a tier that keeps what is
//! staged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use monarch_abi::outputs::state::MAX_PATTERNS;

use super::caps::Cap;
use super::context::Context;
use super::error::{ConfigError, ErrorKind};
use super::given::{Given, Kind, Location, NamePattern, Size};
use super::key::Key;
use super::model::{self, Amount, Medium, OutputRoot, OutputSync, Root, Tier};
use super::paths::nested;
use super::probe::Probe;
use super::raw::{RawNamedOutput, RawOutput};
use super::roots::{Purpose, apart, one, spellings};
use super::site_file::SITE_FILE;
use super::units::{HOUR, MIB, about};

/// How long a call waits for another node to publish what it asks for.
const PEER_WAIT: Duration = Duration::from_mins(1);

/// The output roots as far as they are directories: the rest needs the tiers.
pub(super) struct Places<'a>(Vec<(Root, &'a RawOutput)>);

impl Places<'_> {
    /// Whether there is no output root.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Finds and checks the directories. Those that the site forbids are left out.
pub(super) fn places<'a>(cx: &mut Context<'_>, raw: &'a [RawOutput]) -> Result<Places<'a>, ConfigError> {
    let list = Key::new("outputs");
    let (mut roots, mut metas) = (Vec::new(), Vec::new());
    for (index, raw) in raw.iter().enumerate() {
        let key = list.index(index);
        let (path, aliases): (&Given<Location>, &[Given<Location>]) = match raw {
            RawOutput::Path(path) => (path, &[]),
            RawOutput::Named(named) => {
                let Some(path) = &named.path else {
                    let remedy = "add `path: /directory/that/the/job/writes/to`";
                    return Err(cx.error(ErrorKind::Missing, &key, "this output root has no path", remedy));
                };
                (path, named.aliases.as_deref().unwrap_or_default())
            }
        };
        let at = if matches!(raw, RawOutput::Named(_)) { key.name("path") } else { key.clone() };
        let (root, meta) = one(cx, (&at, path), aliases, Purpose::Output)?;
        apart(cx, &key, (&root, &meta), roots.iter().zip(&metas), Purpose::Output)?;
        roots.push(root);
        metas.push(meta);
    }
    let (mut kept, mut left) = (Vec::new(), Vec::new());
    for (at, (root, raw)) in roots.into_iter().zip(raw).enumerate() {
        let Some(cap) = cx.caps.forbids_output(&spellings(&root).collect::<Vec<_>>()) else {
            kept.push(at);
            left.push((root, raw));
            continue;
        };
        let (path, pattern, line) = (root.path.display(), &cap.value, cap.line);
        cx.forbidden.push(format!(
            "what is written below {path} goes to the PFS itself: this site forbids {pattern} ({SITE_FILE}:{line})"
        ));
    }
    cx.layers.origins.keep_elements(&list, &kept);
    Ok(Places(left))
}

/// Gives each directory its tier and its settings.
pub(super) fn resolve(
    cx: &mut Context<'_>,
    places: Places<'_>,
    tiers: &[Tier],
) -> Result<Vec<OutputRoot>, ConfigError> {
    let settings = |(index, (root, raw)): (usize, (Root, &RawOutput))| {
        let key = Key::new("outputs").index(index);
        match raw {
            RawOutput::Named(named) => settings(cx, &key, root, named, tiers),
            RawOutput::Path(_) => settings(cx, &key, root, &RawNamedOutput::default(), tiers),
        }
    };
    places.0.into_iter().enumerate().map(settings).collect()
}

fn settings(
    cx: &mut Context<'_>,
    key: &Key,
    root: Root,
    raw: &RawNamedOutput,
    tiers: &[Tier],
) -> Result<OutputRoot, ConfigError> {
    let name = |name: &str| key.name(name).to_string();
    let volatile = cx.or(&name("volatile"), raw.volatile.as_ref(), false)?;
    let tier = tier_of(cx, key, (&root, raw, volatile), tiers)?;
    beside_tier(cx, key, &root, tier)?;
    Ok(OutputRoot {
        tier: tier.name.clone(),
        volatile,
        fsync: cx.or(&name("fsync"), raw.fsync.as_ref(), OutputSync::Local)?,
        through: through(cx, &key.name("through"), raw.through.as_deref())?,
        max_pending: max_pending(cx, &key.name("max_pending"), raw, tier)?,
        peer_wait: cx.within(&name("peer_wait"), raw.peer_wait.as_ref(), PEER_WAIT, Duration::ZERO..=HOUR)?,
        path: root.path,
        real_path: root.real_path,
        aliases: root.aliases,
    })
}

/// The tier that holds what is staged: the one that is named, or the first that may.
fn tier_of<'a>(
    cx: &mut Context<'_>,
    key: &Key,
    (root, raw, volatile): (&Root, &RawNamedOutput, bool),
    tiers: &'a [Tier],
) -> Result<&'a Tier, ConfigError> {
    let names = || tiers.iter().map(|tier| tier.name.as_str()).collect::<Vec<_>>().join(", ");
    let at = key.name("tier");
    let shown = root.path.display();
    let may = |tier: &&Tier| volatile || tier.medium != Medium::Memory;
    let Some(named) = cx.get(&at, raw.tier.as_ref())? else {
        if let Some(tier) = tiers.iter().find(may) {
            cx.derived(&at, if volatile { "the fastest tier" } else { "the fastest tier on a disk" });
            return Ok(tier);
        }
        let message = format!(
            "what is written below {shown} would be staged in memory, as no tier is on a disk: it would be lost with the node"
        );
        return Err(cx.error(ErrorKind::BadTier, key, message, VOLATILE_REMEDY));
    };
    let Some(tier) = tiers.iter().find(|tier| tier.name == named) else {
        let message = format!("there is no tier called {named}");
        return Err(cx.error(ErrorKind::BadTier, &at, message, format!("write one of: {}", names())));
    };
    if !may(&tier) {
        let message = format!("the tier {named} is in memory: what is staged there is lost with the node");
        return Err(cx.error(ErrorKind::BadTier, &at, message, VOLATILE_REMEDY));
    }
    Ok(tier)
}

const VOLATILE_REMEDY: &str = "name a tier on a disk of this node, or write `volatile: true` beside the path of the \
                               output root if a lost node may take the last files with it";

/// Refuses a tier inside the output root, and an output root inside the tier. Warns of a tier that
/// saves nothing.
fn beside_tier(cx: &mut Context<'_>, key: &Key, root: &Root, tier: &Tier) -> Result<(), ConfigError> {
    let (shown, path) = (root.path.display(), tier.path.display());
    let real = real(cx.probe, &tier.path);
    if spellings(root).any(|spelling| nested(spelling, &tier.path) || nested(spelling, &real)) {
        let message = format!(
            "the output root {shown} and the tier {path} lie in one another: what is staged would be \
                               staged again"
        );
        let remedy = "put the tier beside the output root, on a disk of this node";
        return Err(cx.error(ErrorKind::Overlap, key, message, remedy));
    }
    let dev = |path: &Path| path.ancestors().find_map(|base| cx.probe.meta(base).ok()).map(|meta| meta.dev);
    if dev(&root.real_path).is_some_and(|own| dev(&tier.path) == Some(own)) {
        cx.warn(key, format!("{shown} is on the file system of its tier {path}: a file is written twice there"));
    }
    Ok(())
}

/// A path with links followed, as far as it exists.
fn real(probe: &dyn Probe, path: &Path) -> PathBuf {
    let found = path.ancestors().find_map(|base| Some((base, probe.canonicalize(base).ok()?)));
    found.map_or_else(
        || path.to_owned(),
        |(base, real)| real.join(path.strip_prefix(base).unwrap_or(Path::new(""))).components().collect(),
    )
}

fn through(cx: &Context<'_>, key: &Key, raw: Option<&[Given<NamePattern>]>) -> Result<Vec<String>, ConfigError> {
    let Some(raw) = raw else { return Ok(model::THROUGH.map(str::to_owned).to_vec()) };
    let each = raw.iter().enumerate().map(|(at, given)| cx.get(&key.index(at), Some(given)));
    let patterns: Vec<String> = each.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    let bytes: usize = patterns.iter().map(|pattern| pattern.len() + 1).sum();
    if bytes > MAX_PATTERNS {
        let message = format!("the patterns have {bytes} bytes together, {MAX_PATTERNS} at most are usable");
        return Err(cx.error(ErrorKind::OutOfBounds, key, message, "write fewer patterns, with more `*`"));
    }
    Ok(patterns)
}

fn max_pending(cx: &mut Context<'_>, key: &Key, raw: &RawNamedOutput, tier: &Tier) -> Result<u64, ConfigError> {
    let given = cx.get(key, raw.max_pending.as_ref())?;
    if given.is_none() {
        cx.derived(key, format!("half of the capacity of the tier {}, {}", tier.name, about(tier.capacity)));
    }
    let bytes = given.unwrap_or(Amount::Share(0.5)).of(tier.capacity);
    let (shown, capacity) = (about(bytes), about(tier.capacity));
    if bytes > tier.capacity {
        let message = format!("{shown} is more than the capacity of the tier {}, {capacity}", tier.name);
        return Err(cx.error(ErrorKind::TooBig, key, message, "write less, or a share such as 50%"));
    }
    if given.is_some() && bytes < MIB {
        let message = format!("{shown} is too small to stage files");
        let remedy = "write 1MiB or more, or leave the output root out: files are then written to the PFS";
        return Err(cx.error(ErrorKind::OutOfBounds, key, message, remedy));
    }
    let cap: Option<Cap<u64>> = cx.caps.max_pending.clone();
    Ok(cx.capped(key, bytes, cap.as_ref(), Size::show))
}
