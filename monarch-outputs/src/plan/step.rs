//! What the plan asks for.

use super::place::{Guard, Place};
use monarch_abi::outputs::names::Staged;

/// What the PFS may have at a name when the turn of a step comes, unless others have changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// What it had when the job made its call, or what the agent is known to have left there since:
    /// [`monarch_abi::outputs::found`].
    pub found: u64,
    /// What an agent may have put there since and not logged.
    pub own: Vec<Guard>,
}

/// A name to remove with a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vacate {
    /// The name.
    pub name: Vec<u8>,
    /// Which thing of that name.
    pub guard: Guard,
    /// What the PFS is expected to have there.
    pub expected: Expectation,
}

/// A file to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStep {
    /// The staged file.
    pub staged: Staged,
    /// The name that it gets, below the output root.
    pub target: Vec<u8>,
    /// Directory of its part file.
    pub part_dir: Vec<u8>,
    /// Names that the published file may have had, newest first.
    pub former: Vec<Vec<u8>>,
    /// Names to remove after the rename.
    pub vacates: Vec<Vacate>,
    /// Whether owner and group are to be set.
    pub owner_changed: bool,
    /// The killed writers' file lies beside the one that it would have replaced.
    pub partial: bool,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Gives a copied file its name.
    Publish(FileStep),
    /// Drops a file that the next entry replaces.
    Skip(Staged),
    /// Removes a name.
    Unlink(Vec<u8>, Guard),
    /// Removes a directory.
    Rmdir(Vec<u8>),
    /// Makes a symbolic link: its path and its target.
    Symlink(Vec<u8>, Vec<u8>),
}

/// The next step of publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its place.
    pub place: Place,
    /// The last record that the plan had read when the step was begun.
    pub read: u64,
    /// What to do.
    pub action: Action,
    /// What the PFS is expected to have at the name that the step gives or removes.
    pub expected: Expectation,
}

impl Step {
    /// Names on the PFS that the step changes.
    pub fn touches(&self) -> impl Iterator<Item = &[u8]> {
        let (first, more): (Option<&[u8]>, &[Vacate]) = match &self.action {
            Action::Publish(file) => (Some(&file.target), &file.vacates),
            Action::Skip(_) => (None, &[]),
            Action::Unlink(path, _) | Action::Rmdir(path) | Action::Symlink(path, _) => (Some(path), &[]),
        };
        first.into_iter().chain(more.iter().map(|vacate| vacate.name.as_slice()))
    }
}

/// A file to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRequest {
    /// The staged file.
    pub staged: Staged,
    /// To be told with the result.
    pub generation: u64,
    /// Directory of its part file.
    pub part_dir: Vec<u8>,
    /// The name that it will get.
    pub target: Vec<u8>,
    /// Names that an earlier publication may have given it, newest first.
    pub former: Vec<Vec<u8>>,
    /// Whether owner and group are to be set.
    pub owner_changed: bool,
    /// Whether extended attributes were changed.
    pub extended_changed: bool,
}

/// A staged file that was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The staged file.
    pub staged: Staged,
    /// The name under which it was created.
    pub name: Vec<u8>,
}

/// A staged file that is not needed any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The staged file.
    pub staged: Staged,
    /// Directory of its part file.
    pub part_dir: Vec<u8>,
    /// The last name that it had.
    pub name: Vec<u8>,
}

/// What the overlay says of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The staged file has the name.
    File(Staged),
    /// The job has removed it.
    Absent,
    /// A pending file has left the name by a rename, and the PFS has nothing of that name, but what
    /// an entry before it removes, and unless the agent was publishing the file just then.
    Left,
    /// The job has removed the directory.
    RemovedDir,
    /// A symbolic link to be, with its target.
    Symlink(Vec<u8>),
}

impl Claim {
    /// What the agent puts at the name, if anything.
    pub(super) fn thing(&self) -> Option<Guard> {
        match self {
            Self::File(staged) => Some(Guard::File(*staged)),
            Self::Symlink(target) => Some(Guard::Symlink(target.clone())),
            Self::Absent | Self::Left | Self::RemovedDir => None,
        }
    }
}

/// What a committed step leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Names whose link in the overlay may change.
    pub names: Vec<Vec<u8>>,
    /// The staged file that was published, if its data is needed no more but as a clean copy.
    pub file: Option<Staged>,
    /// Whether the published file has the name for the job, so that it may become a clean copy.
    pub visible: bool,
}

/// Something that the agent does otherwise than the job would expect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The writers of a file were killed; what they wrote is kept under this name.
    Killed(Vec<u8>),
    /// The staged data of a file is gone.
    Lost(Vec<u8>),
    /// A record names a staged file that the plan does not know.
    UnknownFile(u64),
}
