//! Whether the processes of a job load the audit library, by which the loader maps shared libraries
//! from their copies.
//!
//! It costs each process a moment at its start, so that a job on a data set does without. When the
//! job starts, the agent may not have scanned a root yet. Then the names decide by which the job
//! would come to libraries: its program and the search paths of its environment. No question is
//! asked about them: a question would be one to the PFS.

use super::sanitizer;
use crate::say;
use monarch_core::config::{Dataset, Libraries};
use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// File name of the audit library, which lies beside the preload library.
pub(crate) const NAME: &str = "libmonarch_audit.so";

/// The C library from which on an audit library leaves calls between libraries as quick as they
/// are.
const OLDEST_GLIBC: (u32, u32) = (2, 35);

/// Variables that name directories with programs, modules and libraries.
const SEARCH_PATHS: [&str; 6] = ["PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME", "PYTHONPATH", "LD_LIBRARY_PATH"];

/// Returns the audit library, if the processes of a job are to load it. `known`: whether
/// the agent knows of libraries below a root; `command`: the job's, if it is known.
pub(crate) fn audit(
    choice: Libraries,
    (dataset, known): (&Dataset, bool),
    command: &[OsString],
    shim: &Path,
) -> Option<PathBuf> {
    let is_of_use = match choice {
        Libraries::Off => false,
        Libraries::On => true,
        Libraries::Auto => known || leads_to_software(dataset, command),
    };
    if !is_of_use {
        return None;
    }
    if !is_new_enough(&glibc()?) {
        say::note(format_args!(
            "shared libraries are left to the parallel file system: the C library is older than glibc 2.35"
        ));
        return None;
    }
    let library = shim.with_file_name(NAME);
    library.is_file().then_some(library)
}

/// Whether the program of a job, or a search path of its environment, lies below a root.
fn leads_to_software(dataset: &Dataset, command: &[OsString]) -> bool {
    let program = command.first().and_then(|program| sanitizer::find(program.as_bytes()));
    let values: Vec<OsString> = SEARCH_PATHS.iter().filter_map(env::var_os).collect();
    let dirs = values.iter().flat_map(env::split_paths);
    program.into_iter().chain(dirs).any(|path| is_below_root(dataset, &path))
}

fn is_below_root(dataset: &Dataset, path: &Path) -> bool {
    dataset.roots.iter().any(|root| {
        let mut spellings = [&root.path, &root.real_path].into_iter().chain(&root.aliases);
        spellings.any(|spelling| path.starts_with(spelling))
    })
}

/// The version of the C library that this program runs with, which is the job's as a rule: in a
/// container with an older one the audit library switches itself off.
fn glibc() -> Option<String> {
    // SAFETY: gives a string that lives as long as the program.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    Some(version.to_str().ok()?.to_owned())
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= OLDEST_GLIBC
}

#[cfg(test)]
mod tests {
    use super::is_new_enough;

    #[test]
    fn versions_of_the_c_library_are_compared_as_numbers() {
        assert!(is_new_enough("2.35") && is_new_enough("2.100") && is_new_enough("3.0"));
        assert!(!is_new_enough("2.34") && !is_new_enough("2.4") && !is_new_enough("2.9.9") && !is_new_enough(""));
    }
}
