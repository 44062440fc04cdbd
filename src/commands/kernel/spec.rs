//! A kernel specification: `kernel.json` and the files beside it.

use super::data_dirs::Python;
use anyhow::{Context, Result, bail};
use monarch_core::shown::ShowPath;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Under this key of `metadata` lies the version of Monarch that wrote the specification.
const MARK: &str = "monarch";

pub(super) struct Spec {
    /// Fields that this program does not know stay as they are.
    fields: Map<String, Value>,
    /// Directory with logos and `kernel.js`, to be copied.
    files: Option<PathBuf>,
}

impl Spec {
    /// Reads the specification in this directory.
    ///
    /// # Errors
    /// There is none, or it is not one.
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let file = dir.join("kernel.json");
        let text = fs::read(&file).with_context(|| format!("cannot read {}", file.shown()))?;
        let fields = serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", file.shown()))?;
        let spec = Self { fields, files: Some(dir.to_owned()) };
        if spec.command().is_empty() {
            bail!("{} has no argv", file.shown());
        }
        Ok(spec)
    }

    /// The specification of an interpreter, as `python -m ipykernel install` writes it.
    ///
    /// # Errors
    /// The interpreter has no ipykernel.
    pub(super) fn of_python(python: &Python) -> Result<Self> {
        let executable = python.executable.to_string_lossy().into_owned();
        if !python.has_ipykernel {
            bail!("{executable} has no ipykernel: {executable} -m pip install ipykernel, or name another --python");
        }
        let argv = json!([executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]);
        let named = |(name, value): (&str, Value)| (name.to_owned(), value);
        let fields = Map::from_iter(
            [
                ("argv", argv),
                ("display_name", format!("Python {}", python.version).into()),
                ("language", "python".into()),
                ("metadata", json!({ "debugger": true })),
            ]
            .map(named),
        );
        Ok(Self { fields, files: None })
    }

    pub(super) fn is_ours(&self) -> bool {
        self.fields.get("metadata").and_then(|m| m.get(MARK)).is_some()
    }

    pub(super) fn display_name(&self) -> &str {
        self.fields.get("display_name").and_then(Value::as_str).unwrap_or("")
    }

    /// Returns `argv`.
    pub(super) fn command(&self) -> Vec<String> {
        let words = self.fields.get("argv").and_then(Value::as_array);
        words.into_iter().flatten().filter_map(|w| w.as_str().map(str::to_owned)).collect()
    }

    /// Puts a command before that of the specification, and marks it as ours.
    ///
    /// # Errors
    /// A word of the command is not UTF-8, which JSON cannot hold.
    pub(super) fn put_before(&mut self, before: &[OsString]) -> Result<()> {
        let mut argv = Vec::new();
        for word in before {
            let text = word.to_str().with_context(|| format!("{} is not UTF-8", Path::new(word).shown()))?;
            // Jupyter fills in `{connection_file}` and the like in every word.
            if text.contains(['{', '}']) {
                bail!(
                    "{text}: a kernel's command cannot hold braces, which Jupyter replaces; put the setting into a file for --config"
                );
            }
            argv.push(text.to_owned());
        }
        argv.extend(self.command());
        self.fields.insert("argv".into(), argv.into());
        let metadata = self.fields.entry("metadata").or_insert_with(|| json!({}));
        if !metadata.is_object() {
            *metadata = json!({});
        }
        metadata[MARK] = json!({ "version": env!("CARGO_PKG_VERSION") });
        Ok(())
    }

    /// Sets the name that notebooks show: the one given, or the present one with a suffix.
    pub(super) fn display_as(&mut self, name: Option<&str>) {
        let name = name.map_or_else(|| format!("{} (Monarch)", self.display_name()), str::to_owned);
        self.fields.insert("display_name".into(), name.into());
    }

    /// Writes the specification as `name` into a directory of kernels. What was there is replaced
    /// at once, so that a Jupyter that looks meanwhile sees the old or the new one.
    ///
    /// # Errors
    /// The directory cannot be written; the one that was there stays.
    pub(super) fn write(&self, kernels: &Path, name: &str) -> Result<()> {
        let dir = &kernels.join(name);
        fs::create_dir_all(kernels).with_context(|| format!("cannot make {}", kernels.shown()))?;
        let side = |kind: &str| kernels.join(format!(".{name}.{kind}.{}", std::process::id()));
        let (new, old) = (side("new"), side("old"));
        let put = || -> Result<()> {
            fs::create_dir(&new).with_context(|| format!("cannot make {}", new.shown()))?;
            self.copy_files(&new)?;
            let file = new.join("kernel.json");
            let text = serde_json::to_string_pretty(&self.fields)? + "\n";
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.shown()))?;
            if dir.exists() {
                fs::rename(dir, &old).with_context(|| format!("cannot replace {}", dir.shown()))?;
            }
            fs::rename(&new, dir)
                .inspect_err(|_| drop(fs::rename(&old, dir)))
                .with_context(|| format!("cannot make {}", dir.shown()))
        };
        let done = put();
        let _ = fs::remove_dir_all(&new);
        if done.is_ok() {
            let _ = fs::remove_dir_all(&old);
        }
        done
    }

    /// Copies logos and the like of the kernel that is wrapped.
    fn copy_files(&self, to: &Path) -> Result<()> {
        let Some(from) = &self.files else { return Ok(()) };
        let entries = from.read_dir().with_context(|| format!("cannot list {}", from.shown()))?;
        for entry in entries.flatten().filter(|e| e.file_name() != "kernel.json") {
            if entry.file_type().is_ok_and(|t| t.is_file()) {
                fs::copy(entry.path(), to.join(entry.file_name()))
                    .with_context(|| format!("cannot copy {}", entry.path().shown()))?;
            }
        }
        Ok(())
    }
}
