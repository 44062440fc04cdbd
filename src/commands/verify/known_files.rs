//! Which file a copy is of: from the index of an agent, or from the attributes of files on the PFS.

use crate::args::ConfigArgs;
use crate::kept;
use monarch_core::agent::protocol::Range;
use monarch_core::engine::Limits;
use monarch_core::kept::{KeptCopies, KeptError};
use monarch_core::reader::Reader;
use monarch_core::tier::CopyName;
use std::collections::HashMap;
use std::path::PathBuf;

/// The files of copies, as far as they are known.
pub(super) enum KnownFiles<'a> {
    /// An agent's index has them.
    Indexed { files: HashMap<CopyName, Range>, reader: &'a Reader },
    /// The PFS was asked.
    Found(HashMap<CopyName, PathBuf>),
}

impl KnownFiles<'_> {
    /// Asks the PFS for the files at and below `paths`; of all roots, if there are no paths and the
    /// copies are to be compared with their files.
    ///
    /// # Errors
    /// See [`KeptError`].
    pub(super) fn find(
        copies: &KeptCopies,
        paths: &[PathBuf],
        source: bool,
        config: &ConfigArgs,
        limits: &Limits,
    ) -> Result<Self, KeptError> {
        let wanted: Vec<PathBuf> = match paths {
            [] if source => kept::roots(config, copies).into_iter().map(ToOwned::to_owned).collect(),
            paths => paths.to_vec(),
        };
        let mut files = HashMap::new();
        for path in wanted {
            kept::each_file(copies, &path, limits, |file| {
                if let Some(copy) = file.copy {
                    files.insert(copy.copy.name, file.path);
                }
            })?;
        }
        Ok(Self::Found(files))
    }

    /// Whether the file of a copy is known.
    pub(super) fn has(&self, name: CopyName) -> bool {
        match self {
            Self::Indexed { files, .. } => files.contains_key(&name),
            Self::Found(files) => files.contains_key(&name),
        }
    }

    /// Returns the path of the file of a copy.
    pub(super) fn path(&self, name: CopyName) -> Option<PathBuf> {
        match self {
            Self::Indexed { files, reader } => reader.path(*files.get(&name)?),
            Self::Found(files) => files.get(&name).cloned(),
        }
    }

    /// Returns the entry of the file of a copy in the agent's index.
    pub(super) fn entry(&self, name: CopyName) -> Option<Range> {
        match self {
            Self::Indexed { files, .. } => files.get(&name).copied(),
            Self::Found(_) => None,
        }
    }
}
