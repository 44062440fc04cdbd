//! Links below a root that lead out of it, as in Hugging Face's cache, where `snapshots/REV/FILE`
//! is a link to `../../blobs/HASH`: the directories that they lead to become roots of the job, too.
//!
//! The search asks the PFS before the job starts. So it is made only where no agent serves the root
//! yet, looks below the root's own directory only where links lie in that, and is bounded in
//! directories, entries and time: a PFS that does not answer must not keep the job waiting. A
//! directory is followed only where it cannot surprise: it is on the root's file system, has few
//! entries, and holds no root.

use monarch_core::agent::client;
use monarch_core::config::{Config, Root};
use monarch_core::index::OF_THE_SYSTEM;
use monarch_core::shown::ShowPath;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Most directories of a root that are looked at, those nearest to the root first.
const MAX_SEARCHED_DIRS: usize = 16;
/// Most entries of a root that are looked at, and most entries of a directory that is followed.
const MAX_ENTRIES: usize = 20_000;
/// Most links that are resolved.
const MAX_LINKS: usize = 5_000;
/// Most directories that are followed; beyond, the directory that holds them all is tried.
const MAX_DIRS: usize = 8;
/// How long the search of a root may take.
const MAX_TIME: Duration = Duration::from_secs(2);
/// A directory whose files are to this share the targets of links is prefetched as the root is.
const MIN_LINKED_PERCENT: usize = 90;
/// A directory with fewer components than this, such as `/home`, holds more than a data set.
const MIN_DEPTH: usize = 2;

/// A directory that links of a root lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outside {
    /// The root.
    pub(crate) root: PathBuf,
    /// The directory, without links.
    pub(crate) dir: PathBuf,
    /// Links that lead into it.
    pub(crate) links: usize,
    /// Whether it can be served, and is prefetched as a whole; otherwise why not.
    pub(crate) fit: Result<bool, String>,
}

impl Outside {
    /// Returns the line for the user; with `dataset.follow: off`, what would be served.
    pub(crate) fn text(&self, is_on: bool) -> String {
        let (root, dir) = (self.root.shown(), self.dir.shown());
        match &self.fit {
            Ok(_) if is_on => {
                format!("links of {root} lead to {dir}, which is served, too (dataset.follow: off turns this off)")
            }
            Ok(_) => {
                format!(
                    "links of {root} lead to {dir}, which is read from the PFS: dataset.follow is off; add --root {dir}"
                )
            }
            Err(why) => format!("links of {root} lead to {dir}, which is read from the PFS: {why}"),
        }
    }
}

/// Adds the directories that links of the roots lead to, where that is wanted. Returns them, and
/// those that were not added. Of the tasks of a node only one asks the PFS (`may_ask`): all read
/// through the agent that serves what it has found.
pub(crate) fn add(config: &mut Config, may_ask: bool) -> Vec<Outside> {
    let look = || if may_ask { find(&config.dataset.roots, Depth::WhereLinksAre) } else { Vec::new() };
    let found = known_to_agent(config).unwrap_or_else(look);
    if config.dataset.follow == monarch_core::config::Follow::Auto {
        let fit = found.iter().filter_map(|o| Some((o.root.clone(), o.dir.clone(), *o.fit.as_ref().ok()?)));
        config.dataset.roots.extend(fit.map(|(root, dir, is_whole)| Root {
            path: dir.clone(),
            real_path: dir,
            aliases: Vec::new(),
            only_on_demand: !is_whole,
            followed_from: Some(root),
        }));
    }
    found
}

/// How far below a root links are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Below the root's own directory only if it has links itself.
    WhereLinksAre,
    /// In any case.
    Everywhere,
}

/// Returns the directories that an agent follows already, if it serves all roots: the PFS was asked
/// for its first job.
fn known_to_agent(config: &Config) -> Option<Vec<Outside>> {
    let mut agent = client::find(config)?;
    // One that hangs must not keep the job waiting.
    agent.set_patience(MAX_TIME).ok()?;
    let served = agent.status().ok()?.roots;
    let is_served = |root: &Root| served.iter().any(|r| r.path == root.real_path && r.followed_from.is_none());
    config.dataset.roots.iter().all(is_served).then_some(())?;
    let known = served.into_iter().filter_map(|r| {
        let root = r.followed_from.filter(|from| config.dataset.roots.iter().any(|root| root.real_path == *from))?;
        Some(Outside { root, dir: r.path, links: 0, fit: Ok(!r.only_on_demand) })
    });
    Some(known.collect())
}

/// Finds the directories that links of the roots lead to. Finds none when the PFS takes too long.
pub(crate) fn find(roots: &[Root], depth: Depth) -> Vec<Outside> {
    let (send, receive) = channel();
    let roots: Vec<Root> = roots.to_vec();
    let search = move || send.send(search(&roots, depth));
    let begun = std::thread::Builder::new().name("links".to_owned()).spawn(search);
    begun.ok().and_then(|_| receive.recv_timeout(MAX_TIME).ok()).unwrap_or_default()
}

fn search(roots: &[Root], depth: Depth) -> Vec<Outside> {
    let mut all: Vec<PathBuf> = roots.iter().map(|root| root.real_path.clone()).collect();
    let mut found = Vec::new();
    for root in roots {
        let new = of_root(&root.real_path, &all, depth);
        all.extend(new.iter().filter(|o| o.fit.is_ok()).map(|o| o.dir.clone()));
        found.extend(new);
    }
    found
}

/// What links of a root lead to: files, by their directories, and directories.
#[derive(Debug, Default)]
struct Targets {
    files: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    dirs: BTreeMap<PathBuf, usize>,
}

fn of_root(root: &Path, roots: &[PathBuf], depth: Depth) -> Vec<Outside> {
    let targets = targets(root, roots, depth);
    let mut dirs: BTreeMap<PathBuf, (usize, usize)> = BTreeMap::new();
    for (dir, links) in &targets.dirs {
        dirs.entry(dir.clone()).or_default().0 += links;
    }
    for (dir, files) in &targets.files {
        // A directory that is followed itself has all of its files.
        let holder = targets.dirs.keys().find(|above| dir.starts_with(above)).unwrap_or(dir);
        let counts = dirs.entry(holder.clone()).or_default();
        (counts.0, counts.1) = (counts.0 + files.len(), counts.1 + files.len());
    }
    let outermost: Vec<PathBuf> =
        dirs.keys().filter(|dir| !dirs.keys().any(|above| *dir != above && dir.starts_with(above))).cloned().collect();
    let sum = |of: &Path| {
        let below = dirs.iter().filter(|(dir, _)| dir.starts_with(of));
        below.fold((0, 0), |sum, (_, n)| (sum.0 + n.0, sum.1 + n.1))
    };
    let look = |dir: PathBuf| {
        let (links, files) = sum(&dir);
        let is_target = targets.dirs.contains_key(&dir);
        let fit = fit(root, &dir, roots).map(|held| is_target || files * 100 >= held * MIN_LINKED_PERCENT);
        Outside { root: root.to_owned(), dir, links, fit }
    };
    if outermost.len() > MAX_DIRS
        && let Some(common) = common(&outermost)
    {
        let whole = look(common);
        if whole.fit.is_ok() {
            return vec![whole];
        }
    }
    let mut found: Vec<Outside> = outermost.into_iter().map(look).collect();
    for more in found.iter_mut().skip(MAX_DIRS) {
        more.fit = Err(format!("more than {MAX_DIRS} directories; add --root {}", more.dir.shown()));
    }
    found.truncate(2 * MAX_DIRS);
    found
}

/// Looks through a root for links to what lies in no root.
fn targets(root: &Path, roots: &[PathBuf], depth: Depth) -> Targets {
    let (start, mut entries, mut links) = (Instant::now(), 0, 0);
    let mut found = Targets::default();
    let mut ahead = VecDeque::from([root.to_owned()]);
    for _ in 0..MAX_SEARCHED_DIRS {
        let Some(list) = ahead.pop_front().map(std::fs::read_dir) else { break };
        let Ok(list) = list else { continue };
        for entry in list.flatten() {
            entries += 1;
            if entries > MAX_ENTRIES || links > MAX_LINKS || start.elapsed() > MAX_TIME {
                return found;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => ahead.push_back(entry.path()),
                Ok(kind) if kind.is_symlink() => {
                    links += 1;
                    note(&entry.path(), roots, &mut found);
                }
                _ => {}
            }
        }
        if links == 0 && depth == Depth::WhereLinksAre {
            break;
        }
    }
    found
}

fn note(link: &Path, roots: &[PathBuf], found: &mut Targets) {
    // (A link that leads nowhere, or in a circle, is the job's business.)
    let Ok(target) = link.canonicalize() else { return };
    let is_of_system = |path: &Path| OF_THE_SYSTEM.iter().any(|dir| path.starts_with(dir));
    let is_inside = roots.iter().any(|root| target.starts_with(root));
    if is_inside || is_of_system(&target) && !is_of_system(link) {
        return;
    }
    match target.metadata() {
        Ok(meta) if meta.is_dir() => *found.dirs.entry(target).or_default() += 1,
        Ok(meta) if meta.is_file() => {
            let dir = target.parent().unwrap_or(Path::new("/")).to_owned();
            found.files.entry(dir).or_default().insert(target);
        }
        _ => {}
    }
}

/// Whether a directory may be followed: returns how many files it holds.
///
/// # Errors
/// Why not, and what to do.
fn fit(root: &Path, dir: &Path, roots: &[PathBuf]) -> Result<usize, String> {
    let depth = dir.components().count() - 1;
    if depth < MIN_DEPTH || std::env::home_dir().is_some_and(|home| home.canonicalize().unwrap_or(home) == dir) {
        return Err("it holds more than a data set; name what is to be served with --root".to_owned());
    }
    if roots.iter().any(|root| root.starts_with(dir)) {
        return Err("it holds a root itself; give that directory as the --root in place of the one inside".to_owned());
    }
    let dev = |path: &Path| path.metadata().map(|meta| meta.dev()).ok();
    if dev(root) != dev(dir) {
        return Err(format!("it is on another file system; add --root {}", dir.shown()));
    }
    files_in(dir)
        .ok_or_else(|| format!("it has more than {MAX_ENTRIES} entries, or cannot be read; add --root {}", dir.shown()))
}

/// Counts the files below a directory; `None` when that is too much.
fn files_in(dir: &Path) -> Option<usize> {
    let (start, mut entries, mut files) = (Instant::now(), 0, 0);
    let mut ahead = vec![dir.to_owned()];
    while let Some(dir) = ahead.pop() {
        for entry in std::fs::read_dir(&dir).ok()?.flatten() {
            entries += 1;
            if entries > MAX_ENTRIES || start.elapsed() > MAX_TIME {
                return None;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => ahead.push(entry.path()),
                Ok(kind) => files += usize::from(kind.is_file()),
                Err(_) => {}
            }
        }
    }
    Some(files)
}

/// Returns the innermost directory that holds all of these.
fn common(dirs: &[PathBuf]) -> Option<PathBuf> {
    let (first, rest) = dirs.split_first()?;
    first.ancestors().find(|above| rest.iter().all(|dir| dir.starts_with(above))).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn root(real_path: PathBuf) -> Root {
        Root { path: real_path.clone(), real_path, aliases: Vec::new(), only_on_demand: false, followed_from: None }
    }

    struct Place {
        _dir: tempfile::TempDir,
        top: PathBuf,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let top = dir.path().canonicalize().unwrap().join("set/up");
            fs::create_dir_all(top.join("root/sub")).unwrap();
            Self { _dir: dir, top }
        }

        fn file(&self, path: &str) {
            let path = self.top.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "text").unwrap();
        }

        fn link(&self, target: impl AsRef<Path>, path: &str) {
            symlink(target, self.top.join("root").join(path)).unwrap();
        }

        fn found(&self) -> Vec<Outside> {
            let real_path = self.top.join("root");
            find(&[root(real_path)], Depth::Everywhere)
        }

        /// Directories and what is said of them.
        fn said(&self) -> Vec<(String, Result<bool, String>)> {
            let below = |dir: &Path| dir.strip_prefix(&self.top).map_or_else(|_| dir.to_owned(), Path::to_owned);
            self.found().into_iter().map(|o| (below(&o.dir).to_string_lossy().into_owned(), o.fit)).collect()
        }
    }

    #[test]
    fn targets_of_links_are_found_with_their_directories() {
        let p = Place::new();
        for n in 0..3 {
            p.file(&format!("blobs/{n}"));
            p.link(format!("../blobs/{n}"), &format!("f{n}"));
        }
        p.file("root/inside");
        p.link("inside", "near");
        p.link("nothing", "dangling");
        p.link("circle", "circle");
        assert_eq!(p.said(), [("blobs".to_owned(), Ok(true))]);
        assert_eq!(p.found()[0].links, 3);
        // Most of the directory belongs to others: its files are copied when they are opened.
        (10..20).for_each(|n| p.file(&format!("blobs/{n}")));
        assert_eq!(p.said(), [("blobs".to_owned(), Ok(false))]);
    }

    #[test]
    fn a_link_to_a_directory_stands_for_all_of_it() {
        let p = Place::new();
        ["other/train/a", "other/train/deep/b"].iter().for_each(|path| p.file(path));
        p.link(p.top.join("other/train"), "train");
        p.link(p.top.join("other/train/deep/b"), "sub/b");
        assert_eq!(p.said(), [("other/train".to_owned(), Ok(true))]);
    }

    #[test]
    fn a_directory_that_holds_a_root_or_too_much_is_not_followed() {
        let p = Place::new();
        p.file("beside");
        p.link("../beside", "f");
        p.link("/usr/bin/env", "env");
        p.link("/proc/self", "proc");
        let said: BTreeMap<String, Result<bool, String>> = p.said().into_iter().collect();
        assert!(said[""].as_ref().is_err_and(|why| why.contains("holds a root itself")), "{said:?}");
        assert_eq!(said.len(), 1, "those of the system are no news: {said:?}");
        let top = fit(&p.top.join("root"), Path::new("/opt"), &[]);
        assert!(top.is_err_and(|why| why.contains("more than a data set")));
    }

    #[test]
    fn many_directories_are_followed_by_the_one_that_holds_them() {
        let p = Place::new();
        for n in 0..12 {
            p.file(&format!("store/{n}/blob"));
            p.link(format!("../store/{n}/blob"), &format!("f{n}"));
        }
        assert_eq!(p.said(), [("store".to_owned(), Ok(true))]);
        // Unless it is too large.
        let many = p.top.join("store/many");
        fs::create_dir(&many).unwrap();
        (0..=MAX_ENTRIES).for_each(|n| fs::write(many.join(n.to_string()), "").unwrap());
        let said = p.said();
        assert_eq!((said.len(), said.iter().filter(|(_, fit)| fit.is_ok()).count()), (12, MAX_DIRS));
        p.link("../store/many/7", "seven");
        let many = p.said().into_iter().find(|(dir, _)| dir == "store/many").unwrap().1;
        assert!(many.is_err(), "{many:?}");
    }

    #[test]
    fn another_root_is_not_outside() {
        let p = Place::new();
        p.file("second/f");
        p.link("../second/f", "f");
        let named = |name: &str| root(p.top.join(name));
        assert_eq!(find(&[named("root"), named("second")], Depth::Everywhere), []);
        assert_eq!(find(&[named("root")], Depth::Everywhere).len(), 1);
    }

    #[test]
    fn before_a_job_only_the_roots_own_directory_is_listed_unless_it_has_links() {
        let p = Place::new();
        p.file("second/f");
        p.file("third/f");
        p.link("../../second/f", "sub/f");
        let found = |depth| find(&[root(p.top.join("root"))], depth).len();
        assert_eq!((found(Depth::WhereLinksAre), found(Depth::Everywhere)), (0, 1));
        p.link("../third/f", "f");
        assert_eq!((found(Depth::WhereLinksAre), found(Depth::Everywhere)), (2, 2));
    }
}
