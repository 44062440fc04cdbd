//! Writes the page to a file for the textfile collector of node_exporter, for nodes that Prometheus
//! cannot scrape.
//!
//! The file appears as a whole, and is removed at the end of the agent: otherwise node_exporter
//! would keep collecting the values of a job that has ended.

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Other users, such as that of node_exporter, read it.
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

/// The file with the page.
#[derive(Debug)]
pub(crate) struct Textfile {
    path: PathBuf,
    new: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the file was removed at the end of the agent.
    over: bool,
    trouble: Option<String>,
}

impl Textfile {
    /// The file at `path`; if that is a directory, a file in it whose name has the agent's key.
    pub(crate) fn new(path: &Path, key: &str) -> Self {
        let path = if path.is_dir() {
            path.join(format!("monarch-{}-{key}.prom", rustix::process::geteuid().as_raw()))
        } else {
            path.to_owned()
        };
        // Hidden, and without the suffix that the collector looks for.
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let new = path.with_file_name(format!(".{name}.{}", std::process::id()));
        Self { path, new, state: Mutex::default() }
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns why the last attempt to write it failed, if so.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).trouble.clone()
    }

    /// Replaces the file. Logs a failure once, until a write succeeds.
    pub(crate) fn write(&self, text: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.over {
            return;
        }
        match self.replace(text) {
            Ok(()) => state.trouble = None,
            Err(e) => {
                let _ = std::fs::remove_file(&self.new);
                if state.trouble.is_none() {
                    tracing::warn!(path = %self.path.display(), error = %e, "metrics cannot be written (metrics.textfile); tried again");
                }
                state.trouble = Some(format!("{}: {e}", self.path.display()));
            }
        }
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        // A process that was killed may have left it.
        let _ = std::fs::remove_file(&self.new);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(CWD, &self.new, flags, FILE_MODE)?;
        // The agent's umask removes all rights of other users.
        rustix::fs::fchmod(&file, FILE_MODE)?;
        std::fs::File::from(file).write_all(text.as_bytes())?;
        std::fs::rename(&self.new, &self.path)
    }

    /// Removes the file. It is not written again.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut state.over, true) {
            // (It does not exist if it could never be written.)
            let _ = rustix::fs::unlinkat(CWD, &self.path, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn names(dir: &Path) -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn it_is_replaced_as_a_whole_and_goes_with_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("monarch.prom");
        let file = Textfile::new(&path, "0123");
        file.write("a 1\n");
        let mut old = fs::File::open(&path).unwrap();
        file.write("a 2\nb 1\n");
        let mut text = String::new();
        io::Read::read_to_string(&mut old, &mut text).unwrap();
        assert_eq!((text.as_str(), fs::read_to_string(&path).unwrap().as_str()), ("a 1\n", "a 2\nb 1\n"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!((names(dir.path()), file.trouble()), (vec!["monarch.prom".to_owned()], None));
        file.end();
        file.write("a 3\n");
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn agents_that_share_a_directory_have_files_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["01", "02"].map(|key| Textfile::new(dir.path(), key));
        files.iter().for_each(|f| f.write("a 1\n"));
        let all = names(dir.path());
        assert!(all.len() == 2 && all.iter().all(|n| n.starts_with("monarch-") && n.ends_with(".prom")), "{all:?}");
        assert_eq!(files[0].path().parent(), Some(dir.path()));
    }

    #[test]
    fn a_directory_that_is_not_there_yet_is_trouble_until_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = Textfile::new(&dir.path().join("later/monarch.prom"), "01");
        file.write("a 1\n");
        assert!(file.trouble().unwrap().contains("later/monarch.prom"));
        fs::create_dir(dir.path().join("later")).unwrap();
        file.write("a 1\n");
        assert_eq!((file.trouble(), names(&dir.path().join("later"))), (None, vec!["monarch.prom".to_owned()]));
    }
}
