//! Directories and files that a command about outputs names. A path that fits a known output root
//! as it is written is not looked up: the file system may be the one that does not answer.

use crate::exit_code::EX_USAGE;
use crate::say;
use monarch_core::agent::protocol::OutputStatus;
use monarch_core::shown::ShowPath;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The overlay in a staging directory: it has what is pending (docs/FORMATS.md).
const TREE: &str = "tree";
/// How long a file system may take to resolve a path.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns these paths so that they can be compared with real paths of output roots.
///
/// # Errors
/// The exit code, after a message, for one that does not exist, or whose file system does not
/// answer.
pub(crate) fn resolve(paths: &[PathBuf], roots: &[PathBuf]) -> Result<Vec<PathBuf>, ExitCode> {
    paths.iter().map(|path| one(path, roots)).collect()
}

/// [`resolve`] for directories: one below an output root has to be there, or to be pending. Where
/// the output root is not there, or its file system does not answer, a directory counts as named.
///
/// # Errors
/// As there.
pub(crate) fn existing(dirs: &[PathBuf], outputs: &[&OutputStatus]) -> Result<Vec<PathBuf>, ExitCode> {
    let roots: Vec<PathBuf> = outputs.iter().map(|output| output.path.clone()).collect();
    let dirs = resolve(dirs, &roots)?;
    let missing = dirs.iter().find(|dir| {
        let mut around = outputs.iter().filter_map(|output| Some((output, dir.strip_prefix(&output.path).ok()?)));
        let is_pending = |(output, rel): &(&&OutputStatus, &Path)| {
            rel.as_os_str().is_empty() || output.staging.join(TREE).join(rel).symlink_metadata().is_ok()
        };
        let Some((output, _)) = around.clone().next() else { return false };
        !around.any(|at| is_pending(&at))
            && matches!(looked_up(dir), Some(Lookup::Missing(_) | Lookup::Failed(_)))
            && matches!(looked_up(&output.path), Some(Lookup::Found(_)))
    });
    match missing {
        None => Ok(dirs),
        Some(dir) => {
            say::err(format_args!("monarch: {} does not exist\n", dir.shown()));
            Err(ExitCode::from(EX_USAGE))
        }
    }
}

/// Whether an output root is meant by these directories: it holds one of them, or lies in one.
pub(crate) fn is_about(dirs: &[PathBuf], root: &Path) -> bool {
    dirs.is_empty() || dirs.iter().any(|dir| dir.starts_with(root) || root.starts_with(dir))
}

/// Whether a file system answers when this path is looked up.
pub(crate) fn answers(path: &Path) -> bool {
    looked_up(path).is_some()
}

fn one(path: &Path, roots: &[PathBuf]) -> Result<PathBuf, ExitCode> {
    let written = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let fits = |path: &Path| roots.iter().any(|root| is_about(&[path.to_owned()], root));
    // (What is above `..` depends on links.)
    if !written.components().any(|part| part == Component::ParentDir) && fits(&written) {
        return Ok(written);
    }
    match looked_up(&written) {
        None => {
            say::err(format_args!(
                "monarch: the file system of {} does not answer; name an output root as `monarch outputs` lists it\n",
                path.shown()
            ));
            Err(ExitCode::FAILURE)
        }
        Some(Lookup::Found(real)) => Ok(real),
        Some(Lookup::Missing(real)) if fits(&real) => Ok(real),
        Some(Lookup::Missing(_)) => {
            say::err(format_args!("monarch: {} does not exist\n", path.shown()));
            Err(ExitCode::from(EX_USAGE))
        }
        Some(Lookup::Failed(why)) => {
            say::err(format_args!("monarch: {}: {why}\n", path.shown()));
            Err(ExitCode::from(EX_USAGE))
        }
    }
}

/// What a path leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Its real path.
    Found(PathBuf),
    /// There is no such file: its path below the real path of a directory. A pending file has only
    /// that.
    Missing(PathBuf),
    /// Why it could not be looked up.
    Failed(String),
}

impl Lookup {
    /// Asks the file system.
    pub(crate) fn of(path: &Path) -> Self {
        for base in path.ancestors() {
            match base.canonicalize() {
                Ok(real) if base == path => return Self::Found(real),
                Ok(real) => return Self::Missing(real.join(path.strip_prefix(base).unwrap_or(Path::new("")))),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Self::Failed(e.to_string()),
            }
        }
        Self::Missing(path.to_owned())
    }

    /// As the bytes that another process prints.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Self::Found(path) => (b'+', path.as_os_str().as_bytes()),
            Self::Missing(path) => (b'-', path.as_os_str().as_bytes()),
            Self::Failed(why) => (b'!', why.as_bytes()),
        };
        [&[kind], text].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, text) = bytes.split_first()?;
        let path = || PathBuf::from(OsStr::from_bytes(text));
        match kind {
            b'+' => Some(Self::Found(path())),
            b'-' => Some(Self::Missing(path())),
            b'!' => Some(Self::Failed(String::from_utf8_lossy(text).into_owned())),
            _ => None,
        }
    }
}

/// Looks a path up in a process of its own, since one that waits for a file system may not be able
/// to end before that answers. `None` when it does not answer.
fn looked_up(path: &Path) -> Option<Lookup> {
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.arg("resolve").arg("--").arg(path).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.process_group(0).current_dir("/").spawn().ok()?;
    let mut out = child.stdout.take()?;
    let (send, receive) = channel();
    let read = move || {
        let mut bytes = Vec::new();
        let _ = out.read_to_end(&mut bytes);
        send.send(bytes)
    };
    std::thread::Builder::new().spawn(read).ok()?;
    match receive.recv_timeout(RESOLVE_TIMEOUT) {
        Ok(bytes) => {
            let _ = child.wait();
            Lookup::decode(&bytes)
        }
        Err(_) => {
            let _ = child.kill();
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_fits_a_known_root_is_not_looked_up() {
        let roots = [PathBuf::from("/no/such/scratch/run")];
        for path in ["/no/such/scratch/run", "/no/such/scratch/run/new.pt", "/no/such", "/no/such/./scratch//run"] {
            assert!(resolve(&[path.into()], &roots).is_ok(), "{path}");
        }
    }

    #[test]
    fn links_are_followed_also_above_a_file_that_is_only_pending() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("run")).unwrap();
        std::os::unix::fs::symlink("run", base.join("link")).unwrap();
        let file = base.join("run/file");
        std::fs::write(&file, "").unwrap();
        for (path, found) in [
            ("link", Lookup::Found(base.join("run"))),
            ("link/pending.pt", Lookup::Missing(base.join("run/pending.pt"))),
            ("link/../run", Lookup::Found(base.join("run"))),
            ("no/such", Lookup::Missing(base.join("no/such"))),
        ] {
            assert_eq!(Lookup::of(&base.join(path)), found, "{path}");
            assert_eq!(Lookup::decode(&found.encode()), Some(found));
        }
        assert!(matches!(Lookup::of(&file.join("x")), Lookup::Failed(_)));
        assert_eq!(Lookup::decode(b""), None);
    }

    #[test]
    fn a_directory_means_the_output_root_around_it_and_those_below_it() {
        let root = Path::new("/scratch/run");
        for (dir, meant) in
            [("/scratch/run", true), ("/scratch/run/a", true), ("/scratch", true), ("/scratch/run2", false)]
        {
            assert_eq!(is_about(&[dir.into()], root), meant, "{dir}");
        }
        assert!(is_about(&[], root));
    }
}
