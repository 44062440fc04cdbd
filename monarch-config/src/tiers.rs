//! The tiers: directories of this node, apart from the roots and from each other, with room for
//! what they promise.

use super::caps::Cap;
use super::context::Context;
use super::default_tier;
use super::error::{ConfigError, ErrorKind};
use super::given::{Kind, Size};
use super::keep_free::keep_free_of;
use super::key::Key;
use super::model::{Compression, MIN_RATIO, Medium, Persist, Root, Tier};
use super::paths::nested;
use super::raw::RawTier;
use super::site::{Site, Unfit, refuse};
use super::site_file::SITE_FILE;
use super::units::{MIB, about, share};

/// Longest path of a tier, bytes: readers build paths of copies below it in little room on their
/// stack ([`monarch_abi::COPY_PATH_MAX`], less the directory of the user and the name of a copy).
const LONGEST_PATH_BYTES: usize = 560;

/// Resolves and checks all tiers, or finds the default one.
pub(super) fn resolve(cx: &mut Context<'_>, raw: &[RawTier], roots: &[Root]) -> Result<Vec<Tier>, ConfigError> {
    if raw.is_empty() {
        let mut tier = default_tier::find(cx, roots)?;
        tier.capacity = in_caps(cx, &Key::tier(0).name("capacity"), tier.capacity);
        return Ok(vec![tier]);
    }
    let mut tiers: Vec<(Tier, Site)> = Vec::new();
    for (index, raw) in raw.iter().enumerate() {
        let tier = one(cx, index, raw, roots)?;
        apart(cx, index, &tier, &tiers)?;
        let unfit = |u: Unfit| cx.error(u.kind, &Key::tier(index).name("path"), u.message, u.remedy);
        tier.1.only_last_is_missing(cx.probe).map_err(unfit)?;
        tiers.push(tier);
    }
    below_total(cx, &mut tiers);
    together(cx, &tiers);
    compressed(cx, raw, &mut tiers)?;
    Ok(tiers.into_iter().map(|(tier, _)| tier).collect())
}

fn one(cx: &mut Context<'_>, index: usize, raw: &RawTier, roots: &[Root]) -> Result<(Tier, Site), ConfigError> {
    let key = Key::tier(index);
    let Some(path) = cx.get(&key.name("path"), raw.path.as_ref())? else {
        let remedy = "add `path: /directory/on/a/local/disk`";
        return Err(cx.error(ErrorKind::Missing, &key, "this tier has no path", remedy));
    };
    let name = cx.get(&key.name("name"), raw.name.as_ref())?.unwrap_or_else(|| format!("tier{index}"));
    let allow_network = cx.get(&key.name("allow_network"), raw.allow_network.as_ref())?.unwrap_or(false);
    if path.as_os_str().len() > LONGEST_PATH_BYTES {
        let message = format!(
            "the path of this tier has {} bytes, {LONGEST_PATH_BYTES} at most are usable",
            path.as_os_str().len()
        );
        return Err(cx.error(
            ErrorKind::OutOfBounds,
            &key.name("path"),
            message,
            "use a directory with a shorter path",
        ));
    }
    let site = refuse(cx, &key.name("path"), &path, roots, allow_network)?;
    let given = cx.get(&key.name("capacity"), raw.capacity.as_ref())?;
    let capacity = match given {
        Some(capacity) => explicit(cx, &key.name("capacity"), capacity, &site)?,
        None => implied(cx, &key.name("capacity"), &site)?,
    };
    let cap = cx.caps.tier_capacity.clone();
    let capacity = cx.capped(&key.name("capacity"), capacity, cap.as_ref(), Size::show);
    let keep_free = cx.get(&key.name("keep_free"), raw.keep_free.as_ref())?;
    let keep_free = keep_free_of(cx, &key.name("keep_free"), keep_free, &site)?;
    let persist = cx.get(&key.name("persist"), raw.persist.as_ref())?.unwrap_or_else(|| Persist::of(site.medium));
    let compression = cx.get(&key.name("compression"), raw.compression.as_ref())?.unwrap_or_default();
    let min_ratio = cx.get(&key.name("min_ratio"), raw.min_ratio.as_ref())?.unwrap_or(MIN_RATIO);
    if !(1.0..=100.0).contains(&min_ratio) {
        let message = format!("{min_ratio} is not between 1 and 100");
        let remedy = "write how many times smaller a file has to get, such as 1.2";
        return Err(cx.error(ErrorKind::OutOfBounds, &key.name("min_ratio"), message, remedy));
    }
    let tier = Tier {
        name,
        path: site.path.clone(),
        capacity,
        capacity_is_default: given.is_none(),
        keep_free,
        allow_network,
        persist,
        compression,
        min_ratio,
        decompression_share: 0,
        medium: site.medium,
    };
    Ok((tier, site))
}

/// The capacity of a tier that is the only one, within both caps of the site.
fn in_caps(cx: &mut Context<'_>, key: &Key, capacity: u64) -> u64 {
    let (tier, total) = (cx.caps.tier_capacity.clone(), cx.caps.total_capacity.clone());
    let capacity = cx.capped(key, capacity, tier.as_ref(), Size::show);
    cx.capped(key, capacity, total.as_ref(), Size::show)
}

/// Lowers the slowest tiers until all are within the cap of the site. One with too little left is
/// taken out.
fn below_total(cx: &mut Context<'_>, tiers: &mut Vec<(Tier, Site)>) {
    let Some(cap) = cx.caps.total_capacity.clone() else { return };
    let mut left = cap.value;
    let mut used = 0;
    for (at, (tier, _)) in tiers.iter_mut().enumerate() {
        if left < MIB {
            break;
        }
        let here = Cap { value: left, line: cap.line };
        tier.capacity = cx.capped(&Key::tier(at).name("capacity"), tier.capacity, Some(&here), Size::show);
        left -= tier.capacity;
        used = at + 1;
    }
    for (tier, _) in tiers.drain(used..) {
        let message = format!(
            "the tier {} is not used: the tiers before it have the {} that this site allows ({SITE_FILE}:{})",
            tier.name,
            about(cap.value),
            cap.line
        );
        cx.layers.warnings.push(message);
    }
}

/// The default capacity for a directory that was named without one.
fn implied(cx: &mut Context<'_>, key: &Key, site: &Site) -> Result<u64, ConfigError> {
    let remedy = "give one: `capacity: 100GiB` in the file, `--tier DIR:100GiB` on the command line";
    if cx.probe.in_kubernetes() {
        let message = "a capacity must be given in Kubernetes: a pod that outgrows its volume is evicted";
        return Err(cx.error(ErrorKind::Missing, key, message, remedy));
    }
    let (capacity, how) = default_tier::capacity(cx, site);
    if capacity < MIB {
        let message = format!("there is no room for a default capacity on {}: {how}", site.fs_name());
        return Err(cx.error(ErrorKind::Missing, key, message, remedy));
    }
    cx.derived(key, how);
    Ok(capacity)
}

/// Checks a capacity that was given.
fn explicit(cx: &mut Context<'_>, key: &Key, capacity: u64, site: &Site) -> Result<u64, ConfigError> {
    let (shown, total) = (about(capacity), site.fs.total);
    if capacity < MIB {
        let message = format!("{shown} is too small to hold copies");
        return Err(cx.error(
            ErrorKind::OutOfBounds,
            key,
            message,
            "write 1MiB or more; to do without the tier, leave it out",
        ));
    }
    if capacity > total {
        let message =
            format!("{shown} is more than the file system of {} holds, {}", site.path.display(), about(total));
        let remedy =
            format!("write at most {}, better {} to leave room for others", about(total), about(share(total, 0.9)));
        return Err(cx.error(ErrorKind::TooBig, key, message, remedy));
    }
    if site.medium == Medium::Memory {
        in_memory(cx, key, capacity, site)?;
    }
    if capacity > site.fs.free {
        let room = site.fs.free.saturating_add(cx.probe.used_below(&site.path, capacity - site.fs.free));
        if capacity > room {
            cx.warn(
                key,
                format!("{shown} is more than is free now, {}: the tier will be full before that", about(room)),
            );
        }
    }
    Ok(capacity)
}

/// Files in memory are charged to the job: more than its limit, and the kernel kills it.
fn in_memory(cx: &mut Context<'_>, key: &Key, capacity: u64, site: &Site) -> Result<(), ConfigError> {
    let memory = cx.probe.memory();
    let (whole, shown) = (memory.whole(), about(capacity));
    if capacity > whole {
        let message = format!(
            "{} is in memory, and {shown} is more than the job's memory, {}: the job would be killed",
            site.path.display(),
            about(whole)
        );
        return Err(cx.error(ErrorKind::TooBig, key, message, "write less, and leave enough for the training itself"));
    }
    let left = memory.remaining().saturating_add(cx.probe.used_below(&site.path, capacity));
    if capacity > left {
        cx.warn(
            key,
            format!("{shown} is more than the memory that is left now, {}: the job may be killed", about(left)),
        );
    }
    Ok(())
}

/// Refuses a tier that shares its name or its directory with one before it.
fn apart(
    cx: &Context<'_>,
    index: usize,
    (tier, site): &(Tier, Site),
    others: &[(Tier, Site)],
) -> Result<(), ConfigError> {
    for (other, known) in others {
        let key = Key::tier(index);
        if tier.name == other.name {
            let message = format!("two tiers are called {}", tier.name);
            return Err(cx.error(ErrorKind::Overlap, &key.name("name"), message, "give each a name of its own"));
        }
        if site.real_path == known.real_path {
            let message = format!("{} is the directory of tier {} already", tier.path.display(), other.name);
            return Err(cx.error(
                ErrorKind::Overlap,
                &key.name("path"),
                message,
                "give each tier a directory of its own, or leave one out",
            ));
        }
        if nested(&site.real_path, &known.real_path) || nested(&site.path, &known.path) {
            let message = format!(
                "{} and {} (tier {}) lie in one another",
                tier.path.display(),
                other.path.display(),
                other.name
            );
            return Err(cx.error(
                ErrorKind::Overlap,
                &key.name("path"),
                message,
                "put the directories beside each other",
            ));
        }
    }
    Ok(())
}

/// Position of the last tier that may have compression: a state word has space for no more.
const LAST_COMPRESSED_TIER: usize = 14;

/// Space for decompressed copies: a tier before every tier with compression has to have some.
fn compressed(cx: &mut Context<'_>, raw: &[RawTier], tiers: &mut [(Tier, Site)]) -> Result<(), ConfigError> {
    for at in 0..tiers.len() {
        let packs = |(tier, _): &(Tier, Site)| tier.compression != Compression::None;
        let (compressed, below) = (packs(&tiers[at]), tiers[at + 1..].iter().any(packs));
        let given = match raw.get(at) {
            Some(raw) => cx.get(&Key::tier(at).name("decompression_share"), raw.decompression_share.as_ref())?,
            None => None,
        };
        let capacity = tiers[at].0.capacity;
        let share = match given {
            _ if compressed || !below => 0,
            Some(amount) => amount.of(capacity),
            None => {
                cx.derived(
                    &Key::tier(at).name("decompression_share"),
                    "25% of the capacity: a slower tier has compression",
                );
                capacity / 4
            }
        };
        if given.is_some_and(|amount| amount.of(capacity) > 0) && (compressed || !below) {
            let message =
                if compressed { "this tier has compression itself" } else { "no slower tier has compression" };
            let remedy = "leave it out: decoded copies go to a tier without compression, before one with it";
            return Err(cx.error(ErrorKind::BadTier, &Key::tier(at).name("decompression_share"), message, remedy));
        }
        if share > capacity {
            let message = format!("{} is more than the capacity, {}", about(share), about(capacity));
            return Err(cx.error(
                ErrorKind::TooBig,
                &Key::tier(at).name("decompression_share"),
                message,
                "write less, such as 25%",
            ));
        }
        tiers[at].0.decompression_share = share;
        if compressed && at > LAST_COMPRESSED_TIER {
            let message = "compression is not available beyond the 15th tier";
            return Err(cx.error(ErrorKind::BadTier, &Key::tier(at).name("compression"), message, "use fewer tiers"));
        }
        if compressed && tiers[..at].iter().all(|(tier, _)| tier.decompression_share == 0) {
            let message = "no faster tier has room for decoded copies";
            let remedy =
                "put a tier without compression before this one, such as `{ path: /dev/shm/monarch, capacity: 4GiB }`";
            return Err(cx.error(ErrorKind::BadTier, &Key::tier(at).name("compression"), message, remedy));
        }
    }
    Ok(())
}

/// Warns when tiers on one file system promise more than it holds.
fn together(cx: &mut Context<'_>, tiers: &[(Tier, Site)]) {
    for (index, (tier, site)) in tiers.iter().enumerate() {
        let before: Vec<&Tier> =
            tiers[..index].iter().filter(|(_, known)| known.fs.dev == site.fs.dev).map(|(tier, _)| tier).collect();
        let sum = before.iter().fold(tier.capacity, |sum, tier| sum.saturating_add(tier.capacity));
        if !before.is_empty() && sum > site.fs.total {
            let message = format!(
                "with tier {} this makes {} on one file system, which holds {}",
                before[0].name,
                about(sum),
                about(site.fs.total)
            );
            cx.warn(&Key::tier(index).name("capacity"), message);
        }
    }
}
