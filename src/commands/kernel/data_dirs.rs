//! The directories in which Jupyter looks for kernels.
//!
//! As jupyter_core's `jupyter_path`: `JUPYTER_PATH`, the user's data directory, the environment of
//! the interpreter, `/usr/local/share/jupyter`, `/usr/share/jupyter`.

use anyhow::{Context, Result, bail};
use monarch_core::shown::ShowPath;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An interpreter, by what it says of itself.
pub(super) struct Python {
    /// `sys.executable`.
    pub(super) executable: PathBuf,
    /// `sys.prefix`: the directory of its environment.
    pub(super) prefix: PathBuf,
    /// Whether `ipykernel` can be imported.
    pub(super) has_ipykernel: bool,
    /// Its version, such as `3.11`.
    pub(super) version: String,
}

impl Python {
    /// Asks an interpreter.
    ///
    /// # Errors
    /// It cannot be started, or prints something else.
    pub(super) fn ask(python: &Path) -> Result<Self> {
        let shown = python.shown();
        let said = Command::new(python)
            .args(["-c", include_str!("ask.py")])
            .env_remove("LD_PRELOAD")
            .env_remove("LD_AUDIT")
            .output();
        let said = said.with_context(|| format!("cannot run {shown}; --python names another"))?;
        let text = String::from_utf8_lossy(&said.stdout);
        let lines: Vec<&str> = text.lines().collect();
        let [executable, prefix, has, version] = lines[..] else {
            bail!("{shown} is no Python 3 ({})", String::from_utf8_lossy(&said.stderr).trim());
        };
        let (executable, prefix) = (executable.into(), prefix.into());
        Ok(Self { executable, prefix, has_ipykernel: has == "True", version: version.to_owned() })
    }
}

/// Directories with kernels, in the order in which Jupyter prefers them.
pub(super) struct DataDirs(Vec<PathBuf>);

impl DataDirs {
    pub(super) const KERNELS_BELOW_PREFIX: &str = "share/jupyter/kernels";

    /// Returns the directory of the user's own kernels.
    ///
    /// # Errors
    /// Neither `JUPYTER_DATA_DIR`, `XDG_DATA_HOME` nor `HOME` is set.
    pub(super) fn of_user() -> Result<PathBuf> {
        let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let data = set("JUPYTER_DATA_DIR")
            .or_else(|| set("XDG_DATA_HOME").map(|d| d.join("jupyter")))
            .or_else(|| set("HOME").map(|d| d.join(".local/share/jupyter")));
        Ok(data.context("HOME is not set: name a place by --prefix")?.join("kernels"))
    }

    /// Returns all directories; those of an interpreter's environment if there is one.
    pub(super) fn all(python: Option<&Python>) -> Self {
        let path = env::var_os("JUPYTER_PATH").unwrap_or_default();
        let mut dirs: Vec<PathBuf> =
            env::split_paths(&path).filter(|p| p.is_absolute()).map(|p| p.join("kernels")).collect();
        dirs.extend(Self::of_user());
        let system = [Path::new("/usr/local"), Path::new("/usr")];
        let prefixes = python.iter().map(|p| &*p.prefix).chain(system);
        for dir in prefixes.map(|p| p.join(Self::KERNELS_BELOW_PREFIX)) {
            if !dirs.contains(&dir) {
                dirs.push(dir);
            }
        }
        Self(dirs)
    }

    /// Lists the directories of kernels with their names.
    pub(super) fn kernels(&self) -> Vec<(String, PathBuf)> {
        let mut found = Vec::new();
        for entry in self.0.iter().filter_map(|dir| dir.read_dir().ok()).flatten().flatten() {
            if entry.path().join("kernel.json").exists() {
                found.push((entry.file_name().to_string_lossy().to_ascii_lowercase(), entry.path()));
            }
        }
        found
    }

    /// Returns the directory of the kernel of this name, or the directory named.
    ///
    /// # Errors
    /// There is none; the message names those that there are.
    pub(super) fn find(&self, kernel: &str) -> Result<PathBuf> {
        if kernel.contains('/') {
            return Ok(std::path::absolute(kernel)?);
        }
        let kernels = self.kernels();
        if let Some((_, at)) = kernels.iter().find(|(name, _)| *name == kernel.to_ascii_lowercase()) {
            return Ok(at.clone());
        }
        let mut names: Vec<_> = kernels.into_iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        let there =
            if names.is_empty() { "none is installed".to_owned() } else { format!("there are: {}", names.join(", ")) };
        let looked: Vec<_> = self.0.iter().map(|d| d.shown().to_string()).collect();
        bail!("there is no kernel {kernel:?} in {} ({there})", looked.join(", "))
    }
}
