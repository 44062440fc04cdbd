//! The roots of the data set: they exist, are directories, and none lies inside another, by any of
//! its names.

use std::path::{Path, PathBuf};

use super::context::Context;
use super::error::{ConfigError, ErrorKind};
use super::given::{Given, Location};
use super::key::Key;
use super::model::Root;
use super::paths::{clean, nested};
use super::probe::Meta;
use super::raw::RawRoot;
use super::site_file::SITE_FILE;

/// Resolves and checks all roots.
pub(super) fn resolve(cx: &mut Context<'_>, raw: &[RawRoot]) -> Result<Vec<Root>, ConfigError> {
    let list = Key::new("dataset.roots");
    let mut roots = Vec::new();
    let mut metas = Vec::new();
    for (index, raw) in raw.iter().enumerate() {
        let key = list.index(index);
        let (root, meta) = match raw {
            RawRoot::Path(path) => one(cx, (&key, path), &[], Purpose::Data)?,
            RawRoot::Named(named) => {
                let aliases = named.aliases.as_deref().unwrap_or_default();
                one(cx, (&key.name("path"), &named.path), aliases, Purpose::Data)?
            }
        };
        apart(cx, &key, (&root, &meta), roots.iter().zip(&metas), Purpose::Data)?;
        roots.push(root);
        metas.push(meta);
    }
    Ok(allowed(cx, &list, roots))
}

/// What a directory is named for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Its files are kept near.
    Data,
    /// What is written below it is staged.
    Output,
}

impl Purpose {
    /// What such a directory is called.
    const fn root(self) -> &'static str {
        match self {
            Self::Data => "root",
            Self::Output => "output root",
        }
    }

    /// What it holds.
    const fn content(self) -> &'static str {
        match self {
            Self::Data => "the data set",
            Self::Output => "the output",
        }
    }
}

/// The error of a configuration that names neither roots nor output roots that may be used.
pub(super) fn missing(cx: &Context<'_>) -> ConfigError {
    let list = Key::new("dataset.roots");
    if !cx.forbidden.is_empty() {
        let why = cx.forbidden.join("; ");
        return cx.error(ErrorKind::Forbidden, &list, why, "ask the administrator of this node");
    }
    let remedy = "name its directory: `--root /path`, MONARCH_DATASET__ROOTS=/path, or in the file:\n\
                  dataset: { roots: [/path] }\n\
                  or a directory that the job writes to: `--output /path`";
    cx.error(ErrorKind::Missing, &list, "no root is given, so there is nothing to keep near", remedy)
}

/// The roots that the site does not forbid.
fn allowed(cx: &mut Context<'_>, list: &Key, roots: Vec<Root>) -> Vec<Root> {
    let (mut kept, mut left) = (Vec::new(), Vec::new());
    for (at, root) in roots.into_iter().enumerate() {
        match cx.caps.forbids(&spellings(&root).collect::<Vec<_>>()) {
            None => {
                kept.push(at);
                left.push(root);
            }
            Some(cap) => {
                let (path, pattern, line) = (root.path.display(), &cap.value, cap.line);
                cx.forbidden
                    .push(format!("the root {path} is not served: this site forbids {pattern} ({SITE_FILE}:{line})"));
            }
        }
    }
    cx.layers.origins.keep_elements(list, &kept);
    left
}

/// Directories whose files are made by the kernel as they are read.
const KERNEL_VIEWS: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Checks one root, whose path is given under this key.
pub(super) fn one(
    cx: &mut Context<'_>,
    (key, given): (&Key, &Given<Location>),
    aliases: &[Given<Location>],
    purpose: Purpose,
) -> Result<(Root, Meta), ConfigError> {
    let path = clean(cx, ErrorKind::BadRoot, key, Path::new(&given.0))?;
    let (real_path, meta) = directory(cx, key, &path, purpose)?;
    let (content, remedy) = (purpose.content(), format!("name the directory of {} itself", purpose.content()));
    if path.parent().is_none() || real_path.parent().is_none() {
        let message = format!(
            "{} is the top of the file tree; every file of the node would be taken for {content}",
            path.display()
        );
        return Err(cx.error(ErrorKind::BadRoot, key, message, remedy));
    }
    if let Some(kernel) = KERNEL_VIEWS.iter().find(|view| real_path.starts_with(view))
        && !real_path.starts_with("/dev/shm")
    {
        let message = format!(
            "{} is below {kernel}, whose files the kernel makes as they are read: no place for {content}",
            path.display()
        );
        return Err(cx.error(ErrorKind::BadRoot, key, message, remedy));
    }
    let aliases = aliases_of(cx, key, (&path, &meta), aliases, purpose)?;
    Ok((Root { path, real_path, aliases, only_on_demand: false, followed_from: None }, meta))
}

fn directory(cx: &Context<'_>, key: &Key, path: &Path, purpose: Purpose) -> Result<(PathBuf, Meta), ConfigError> {
    let shown = path.display();
    let found = cx.probe.canonicalize(path).and_then(|real| Ok((cx.probe.meta(&real)?, real)));
    match found {
        Ok((meta, real)) if meta.is_dir => Ok((real, meta)),
        Ok(_) => {
            let remedy = format!("name the directory that holds the files of {}", purpose.content());
            Err(cx.error(ErrorKind::BadRoot, key, format!("{shown} is not a directory"), remedy))
        }
        Err(error) => {
            let is_to_be_made = purpose == Purpose::Output && error.kind() == std::io::ErrorKind::NotFound;
            let remedy = if is_to_be_made {
                format!("make it, if it is spelled well and its file system is mounted: `mkdir -p {shown}`")
            } else {
                format!(
                    "check the spelling, and with `ls -d {shown}` that it is mounted on this node and that you may enter it"
                )
            };
            Err(cx.error(ErrorKind::BadRoot, key, format!("cannot use {shown}: {error}"), remedy))
        }
    }
}

/// Checks that each alias leads to the root; one that is not on this node is only worth a warning.
fn aliases_of(
    cx: &mut Context<'_>,
    key: &Key,
    (root, meta): (&Path, &Meta),
    given: &[Given<Location>],
    purpose: Purpose,
) -> Result<Vec<PathBuf>, ConfigError> {
    let list = key.parent().unwrap_or_default().name("aliases");
    let mut aliases = Vec::new();
    for (index, given) in given.iter().enumerate() {
        let key = list.index(index);
        let alias = clean(cx, ErrorKind::BadRoot, &key, Path::new(&given.0))?;
        match cx.probe.meta(&alias) {
            Ok(found) if (found.dev, found.ino) != (meta.dev, meta.ino) => {
                let (what, root) = (purpose.root(), root.display());
                let message = format!("{} leads to another directory than the {what} {root}", alias.display());
                let remedy =
                    "an alias is another name of the same directory; list another directory as a root of its own";
                return Err(cx.error(ErrorKind::BadRoot, &key, message, remedy));
            }
            Ok(_) => aliases.push(alias),
            Err(error) => cx.warn(&key, format!("{} is left out: {error}", alias.display())),
        }
    }
    Ok(aliases)
}

/// Every spelling of a root.
pub(super) fn spellings(root: &Root) -> impl Iterator<Item = &Path> {
    [&root.path, &root.real_path].into_iter().chain(&root.aliases).map(PathBuf::as_path)
}

/// Refuses a root that is one of the roots before it, or lies in one, or holds one.
pub(super) fn apart<'a>(
    cx: &Context<'_>,
    key: &Key,
    (root, meta): (&Root, &Meta),
    others: impl Iterator<Item = (&'a Root, &'a Meta)>,
    purpose: Purpose,
) -> Result<(), ConfigError> {
    let what = purpose.root();
    for (other, known) in others {
        let (mine, theirs) = (root.path.display(), other.path.display());
        if (meta.dev, meta.ino) == (known.dev, known.ino) {
            let message = format!("{mine} is the same directory as the {what} {theirs}");
            let remedy = match root.path == other.path {
                true => "name it once".to_owned(),
                false => format!("name it once, with its other name: {{ path: {theirs}, aliases: [{mine}] }}"),
            };
            return Err(cx.error(ErrorKind::Overlap, key, message, remedy));
        }
        let clash = spellings(root).flat_map(|a| spellings(other).map(move |b| (a, b))).find(|(a, b)| nested(a, b));
        if let Some((a, b)) = clash {
            let (inner, outer) = if a.starts_with(b) { (a, b) } else { (b, a) };
            let message = format!(
                "the {what}s {mine} and {theirs} overlap: {} lies inside {}, so a file would belong to both",
                inner.display(),
                outer.display()
            );
            return Err(cx.error(
                ErrorKind::Overlap,
                key,
                message,
                "keep the outer one, or name the directories beside each other",
            ));
        }
    }
    Ok(())
}
