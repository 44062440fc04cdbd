//! Absolute paths.

use crate::ctx::Ctx;
use monarch_abi::PATH_MAX;
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::Found;

/// A path made absolute.
pub struct Absolute(pub PathBuffer);

impl Absolute {
    /// Its bytes.
    #[must_use]
    pub fn get(&self) -> &[u8] {
        self.0.get()
    }

    /// It followed by a NUL.
    #[must_use]
    pub fn c_str(&mut self) -> Option<&core::ffi::CStr> {
        self.0.c_str()
    }

    /// `base/rel`.
    #[must_use]
    pub fn join(base: &[u8], rel: &[u8]) -> Option<Self> {
        let mut abs = Self(PathBuffer::front());
        abs.0.append(base)?;
        if !rel.is_empty() {
            abs.append(rel)?;
        }
        Some(abs)
    }

    /// Another component, or several.
    pub fn append(&mut self, path: &[u8]) -> Option<()> {
        if self.get() != b"/" {
            self.0.append(b"/")?;
        }
        self.0.append(path)?;
        // Room for a NUL stays.
        (self.get().len() < PATH_MAX).then_some(())
    }
}

/// The path on the PFS of an entry.
#[must_use]
pub fn pfs_path(ctx: &Ctx, f: &Found<'static>) -> Option<Absolute> {
    let rel = f.segment.index.path_of(f.entry.id)?;
    let root = ctx.map.roots().get(f.root)?;
    Absolute::join(ctx.map.str(&root.path), rel.get())
}
