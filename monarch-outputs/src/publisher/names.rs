//! Changes of names on the PFS, the directories that have to be synced for them, and what is to be
//! reported of them.

use crate::copy::Failure;
use crate::newer::NewerCheck;
use crate::plan::{Expectation, Guard, join, parent};
use crate::target::OutputTarget;
use monarch_abi::outputs::names::{Staged, parse_part, part_name};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A part file that lies elsewhere now.
pub(super) struct MovedPart {
    /// The number of its staged file.
    pub(super) id: u64,
    /// Where it lay.
    pub(super) from: Vec<u8>,
    /// Where it lies.
    pub(super) to: Vec<u8>,
}

/// The names below an output root.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) target: Arc<dyn OutputTarget>,
    /// Number of the staging directory, in the names of part files.
    pub(super) instance: u64,
    pub(super) newer: NewerCheck,
    /// Directories that are to be synced.
    pub(super) dirs: BTreeSet<Vec<u8>>,
    pub(super) notes: Vec<String>,
}

/// A path in a message.
pub(super) fn lossy(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Takes a missing name for a success.
pub(super) fn unless_missing(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

impl Names {
    /// Whether a name has something newer than what was expected there.
    pub(super) fn is_newer(
        &self,
        path: &[u8],
        expected: &Expectation,
        staged: Option<&Staged>,
    ) -> Result<bool, Failure> {
        self.newer.is_newer(self.target.as_ref(), path, expected, staged)
    }

    /// Removes a name, if it is what is meant.
    pub(super) fn unlink(&mut self, path: &[u8], guard: &Guard, expected: &Expectation) -> Result<(), Failure> {
        match self.unlink_inside(path, guard, expected) {
            Err(failure) if !failure.is_of_tier && failure.errno == Errno::XDEV => {
                self.keep_outside(path);
                Ok(())
            }
            done => done,
        }
    }

    fn unlink_inside(&mut self, path: &[u8], guard: &Guard, expected: &Expectation) -> Result<(), Failure> {
        let fail = || Failure::new("remove", path);
        let is_meant = match guard {
            Guard::Any if self.is_newer(path, expected, None)? => {
                self.notes
                    .push(format!("{} was removed by the job, and changed by others since: it is kept", lossy(path)));
                false
            }
            Guard::Any => true,
            Guard::Nothing => false,
            Guard::File(staged) => match self.target.stat(path) {
                Ok(found) => crate::copy::is_part_of(&found, staged),
                Err(Errno::NOENT | Errno::NOTDIR) => false,
                Err(errno) => return Err(fail()(errno)),
            },
            Guard::Symlink(target) => self.target.readlink(path).is_ok_and(|found| found == *target),
        };
        if !is_meant {
            return Ok(());
        }
        match self.target.unlink(path) {
            Ok(()) => {
                self.dirs.insert(parent(path).to_vec());
                Ok(())
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(Errno::ISDIR) => {
                self.notes.push(format!("{} was removed by the job, and is a directory now: it is kept", lossy(path)));
                Ok(())
            }
            // With direct writing the job gets the error. Holding other entries mends nothing.
            Err(errno @ (Errno::PERM | Errno::BUSY)) => {
                self.notes.push(format!(
                    "{} was removed by the job, and the PFS refuses that ({errno}): it is kept",
                    lossy(path)
                ));
                Ok(())
            }
            Err(errno) => Err(fail()(errno)),
        }
    }

    /// Leaves a name alone that cannot be reached, as a symbolic link has taken the place of a
    /// directory. Holding other entries would bring back nothing.
    fn keep_outside(&mut self, path: &[u8]) {
        self.notes.push(format!(
            "{} was removed by the job, and a symbolic link has taken the place of its directory: it is kept",
            lossy(path)
        ));
    }

    /// Removes a directory. Part files of this node that are in it move into the output root, and
    /// are handed over.
    pub(super) fn rmdir(&mut self, path: &[u8], moved: &mut Vec<MovedPart>) -> Result<(), Failure> {
        let fail = || Failure::new("remove the directory", path);
        let mut end = self.target.rmdir(path);
        if matches!(end, Err(Errno::NOTEMPTY | Errno::EXIST)) {
            self.evacuate(path, moved).map_err(fail())?;
            end = self.target.rmdir(path);
        }
        match end {
            Ok(()) => {
                self.dirs.insert(parent(path).to_vec());
                Ok(())
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(Errno::XDEV) => {
                self.keep_outside(path);
                Ok(())
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                let note = "was removed by the job, but others have put files there: it is kept";
                self.notes.push(format!("the directory {} {note}", lossy(path)));
                Ok(())
            }
            Err(errno @ (Errno::PERM | Errno::BUSY)) => {
                self.notes.push(format!(
                    "the directory {} was removed by the job, and the PFS refuses that ({errno}): it is kept",
                    lossy(path)
                ));
                Ok(())
            }
            Err(errno) => Err(fail()(errno)),
        }
    }

    /// Moves the part files of this node out of a directory that is to go: into the output root.
    fn evacuate(&self, dir: &[u8], moved: &mut Vec<MovedPart>) -> Result<(), Errno> {
        for name in self.target.names(dir)? {
            let Some((instance, id)) = parse_part(&name) else { continue };
            if instance == self.instance {
                let from = join(dir, &name);
                self.target.rename(&from, &name)?;
                moved.push(MovedPart { id, from, to: name });
            }
        }
        Ok(())
    }

    /// Makes a symbolic link; `false` where others have made something newer there.
    pub(super) fn symlink(&mut self, path: &[u8], target: &[u8], expected: &Expectation) -> Result<bool, Failure> {
        let fail = || Failure::new("make the symbolic link", path);
        match self.target.symlink(path, target) {
            Ok(()) => {}
            Err(Errno::EXIST) if self.target.readlink(path).is_ok_and(|found| found == target) => {}
            Err(Errno::EXIST) if self.is_newer(path, expected, None)? => {
                self.notes.push(format!(
                    "{} was made by others after the job had made a link there: the job's link is left out",
                    lossy(path)
                ));
                return Ok(false);
            }
            Err(Errno::EXIST) => {
                let is_link = self.target.readlink(path).is_ok();
                let new = join(parent(path), &part_name(self.instance, u64::MAX));
                unless_missing(self.target.unlink(&new)).map_err(fail())?;
                self.target.symlink(&new, target).map_err(fail())?;
                self.target.rename(&new, path).map_err(fail())?;
                if !is_link {
                    self.notes
                        .push(format!("{} was made by others meanwhile: the job's link replaces it", lossy(path)));
                }
            }
            Err(errno) => return Err(fail()(errno)),
        }
        self.dirs.insert(parent(path).to_vec());
        Ok(true)
    }
}
