//! Publishes what a staged file that is open has at the moment.

use crate::errors::OutputsError;
use crate::plan::{join, parent};
use crate::staging::StagingDir;
use crate::target::OutputTarget;
use monarch_abi::outputs::STAGED_MODE;
use monarch_abi::outputs::names::{Link, part_name};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bit of the number in the name of a part file that holds a snapshot.
const SNAPSHOT: u64 = 1 << 63;
/// Bytes that are copied at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Copies the staged file that has a name to the PFS, under that name. The bytes.
///
/// # Errors
/// [`OutputsError`].
pub fn publish(staging: &StagingDir, target: &dyn OutputTarget, root: &Path, file: &Path) -> Result<u64, OutputsError> {
    let not_staged = || OutputsError::NotStaged { path: file.to_owned() };
    let name = file.strip_prefix(root).map_err(|_| not_staged())?.as_os_str().as_bytes();
    let text = {
        let _lock = staging.lock_journal()?;
        staging.tree().read(name).map_err(OutputsError::io("look up", file))?
    };
    let Some(Link::File(staged)) = text.as_deref().and_then(Link::parse) else { return Err(not_staged()) };
    let data = staging.open_data(&staged).map_err(OutputsError::io("open the staged file of", file))?;
    let st = rustix::fs::fstat(&data).map_err(OutputsError::io("stat the staged file of", file))?;
    let part = join(parent(name), &part_name(staging.info().instance, staged.id | SNAPSHOT));
    let copy = || -> Result<u64, Errno> {
        match target.unlink(&part) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let to = target.create(&part, st.st_mode & 0o7777 & !STAGED_MODE)?;
        let (mut buffer, mut at) = (vec![0; CHUNK_BYTES], 0);
        loop {
            let got = rustix::io::retry_on_intr(|| rustix::io::pread(&data, &mut buffer[..], at))?;
            if got == 0 {
                break;
            }
            let mut rest = &buffer[..got];
            while !rest.is_empty() {
                let n = to.write_at(rest, at)?;
                if n == 0 {
                    return Err(Errno::NOSPC);
                }
                (rest, at) = (&rest[n..], at + n as u64);
            }
        }
        to.sync()?;
        target.rename(&part, name)?;
        target.sync_dir(parent(name))?;
        Ok(at)
    };
    copy().map_err(OutputsError::io("publish", file))
}
