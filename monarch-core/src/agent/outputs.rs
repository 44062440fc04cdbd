//! The output roots of an agent's jobs, as the control socket sees them: what drains each, its
//! state, and requests to publish.

use crate::snapshot::OutputStatus;
use crate::sync::{Mutex, lock};
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What copies to the PFS what jobs write below an output root.
pub trait OutputDrain: Debug + Send + Sync {
    /// State of the output root. Asks neither the PFS nor the tier.
    fn status(&self) -> OutputStatus;

    /// Publishes as soon as possible what is pending, and a snapshot of each of these files that a
    /// process has open for writing. Returns when that is begun.
    ///
    /// # Errors
    /// When one of the files is not staged, or cannot be read.
    fn flush(&self, open: &[PathBuf]) -> io::Result<()>;
}

/// The output roots that an agent drains.
#[derive(Debug, Default)]
pub struct Outputs(Mutex<Vec<Arc<dyn OutputDrain>>>);

impl Outputs {
    /// Adds an output root.
    pub fn add(&self, drain: Arc<dyn OutputDrain>) {
        lock(&self.0).push(drain);
    }

    /// State of these output roots, by their real paths; of all if none is named.
    #[must_use]
    pub fn status(&self, roots: &[PathBuf]) -> Vec<OutputStatus> {
        let drains = lock(&self.0).clone();
        drains.iter().map(|drain| drain.status()).filter(|status| is_wanted(roots, &status.path)).collect()
    }

    /// Begins to publish what is pending below these output roots, and snapshots of open files.
    /// Returns their state.
    ///
    /// # Errors
    /// When one of the files is in none of these output roots, or cannot be published.
    pub fn flush(&self, roots: &[PathBuf], open: &[PathBuf]) -> io::Result<Vec<OutputStatus>> {
        let drains = lock(&self.0).clone();
        let mut flushed = Vec::new();
        for drain in &drains {
            let status = drain.status();
            if !is_wanted(roots, &status.path) {
                continue;
            }
            let own: Vec<PathBuf> = open.iter().filter(|file| file.starts_with(&status.path)).cloned().collect();
            drain.flush(&own)?;
            flushed.push(drain.status());
        }
        match open.iter().find(|file| !flushed.iter().any(|root| file.starts_with(&root.path))) {
            Some(file) => Err(io::Error::other(format!("{} is below no output root", file.display()))),
            None => Ok(flushed),
        }
    }
}

fn is_wanted(roots: &[PathBuf], path: &Path) -> bool {
    roots.is_empty() || roots.iter().any(|root| root == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has something pending, and publishes it when it is asked to.
    #[derive(Debug)]
    struct Double {
        path: PathBuf,
        flushed: Mutex<Option<Vec<PathBuf>>>,
    }

    impl OutputDrain for Double {
        fn status(&self) -> OutputStatus {
            let pending = u64::from(lock(&self.flushed).is_none());
            OutputStatus { path: self.path.clone(), pending, ..OutputStatus::default() }
        }

        fn flush(&self, open: &[PathBuf]) -> io::Result<()> {
            *lock(&self.flushed) = Some(open.to_vec());
            Ok(())
        }
    }

    fn two() -> (Outputs, [Arc<Double>; 2]) {
        let outputs = Outputs::default();
        let drains = ["/out/a", "/out/b"].map(|path| Arc::new(Double { path: path.into(), flushed: Mutex::new(None) }));
        drains.iter().for_each(|drain| outputs.add(drain.clone()));
        (outputs, drains)
    }

    #[test]
    fn the_state_of_one_or_of_all_is_told() {
        let (outputs, _) = two();
        let paths = |roots: &[PathBuf]| outputs.status(roots).into_iter().map(|s| s.path).collect::<Vec<_>>();
        assert_eq!(paths(&[]), [Path::new("/out/a"), Path::new("/out/b")]);
        assert_eq!(paths(&["/out/b".into()]), [Path::new("/out/b")]);
        assert!(paths(&["/out".into()]).is_empty() && Outputs::default().status(&[]).is_empty());
    }

    #[test]
    fn open_files_go_to_the_output_root_that_holds_them() {
        let (outputs, [a, b]) = two();
        let state = outputs.flush(&[], &["/out/b/log.bin".into()]).unwrap();
        assert_eq!(state.iter().map(|s| s.pending).collect::<Vec<_>>(), [0, 0]);
        assert_eq!(*lock(&a.flushed), Some(vec![]));
        assert_eq!(*lock(&b.flushed), Some(vec!["/out/b/log.bin".into()]));
    }

    #[test]
    fn a_file_outside_of_what_is_flushed_is_an_error() {
        let (outputs, [a, b]) = two();
        let error = outputs.flush(&["/out/a".into()], &["/out/b/x".into()]).unwrap_err();
        assert_eq!(error.to_string(), "/out/b/x is below no output root");
        assert!(lock(&a.flushed).is_some() && lock(&b.flushed).is_none());
    }
}
