//! The string that is answered, and what keeps it valid until the loader has opened it.
//!
//! A copy may be dropped at any time, and a path that leads nowhere would end the loader's search
//! with an error. So the answer is the name of a descriptor of the copy, which is closed at the
//! next call. Where the loader takes the directory of a library from the answer, the answer is made
//! long enough to be overwritten by what the program meant.

use crate::link_map::LinkMap;
use crate::opened::Opened;
use crate::origin::{Origin, directory, put};
use core::ffi::{CStr, c_char};
use monarch_abi::PATH_MAX;
use monarch_abi::hash::CopyName;
use monarch_guest::sys;

/// A string with a NUL behind it.
struct Text {
    bytes: [u8; PATH_MAX],
    len: usize,
}

impl Text {
    const fn empty() -> Self {
        Self { bytes: [0; PATH_MAX], len: 0 }
    }

    fn get(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds to it; `None` when that does not fit.
    fn append(&mut self, text: &[u8]) -> Option<()> {
        let end = self.len.checked_add(text.len()).filter(|end| *end < PATH_MAX)?;
        self.bytes.get_mut(self.len..end)?.copy_from_slice(text);
        *self.bytes.get_mut(end)? = 0;
        self.len = end;
        Some(())
    }

    /// Adds a number.
    fn append_number(&mut self, mut number: u32) -> Option<()> {
        let mut digits = [0u8; 10];
        let mut at = digits.len();
        loop {
            at = at.checked_sub(1)?;
            *digits.get_mut(at)? = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return self.append(digits.get(at..)?);
            }
        }
    }

    fn set(&mut self, text: &[u8]) -> Option<()> {
        self.clear();
        self.append(text)
    }
}

/// What the loader makes of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It only opens it: the library has the name that was asked about.
    Candidate,
    /// The library has it as its name, and its directory.
    Name,
}

/// The last answer.
pub struct Answer {
    text: Text,
    /// What the library's name is to be.
    name: Text,
    /// What its directory is to be.
    directory: Text,
    used: Use,
    /// The copy; 0: the last answer was no copy.
    version: u128,
    /// The descriptor behind the text plus one, or 0, and its file.
    descriptor: i32,
    file: (u64, u64),
}

impl Answer {
    /// None yet.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            text: Text::empty(),
            name: Text::empty(),
            directory: Text::empty(),
            used: Use::Candidate,
            version: 0,
            descriptor: 0,
            file: (0, 0),
        }
    }

    /// Answers a question about a candidate with a copy.
    pub fn candidate(&mut self, name: &[u8], copy: Opened) -> Option<*const c_char> {
        self.begin(name, &copy)?;
        self.used = Use::Candidate;
        self.keep(copy)
    }

    /// Answers a question about a name with a copy. The library is to have this name, and what
    /// follows it in `whole`, which may be the same, is to be its path.
    pub fn named(&mut self, name: &[u8], whole: &[u8], copy: Opened) -> Option<*const c_char> {
        self.begin(name, &copy)?;
        self.used = Use::Name;
        self.directory.set(directory(whole))?;
        // The name in front of which `/.` is put as often as needed.
        let slash = self.text.get().iter().rposition(|&c| c == b'/')?;
        let mut last = Text::empty();
        last.append(self.text.get().get(slash..)?)?;
        self.text.len = slash;
        while self.text.len < self.directory.len || self.text.len + last.len < self.name.len {
            self.text.append(b"/.")?;
        }
        self.text.append(last.get())?;
        // The loader replaces `$ORIGIN` in what it opens.
        if self.text.get().contains(&b'$') {
            return None;
        }
        self.keep(copy)
    }

    fn begin(&mut self, name: &[u8], copy: &Opened) -> Option<()> {
        self.name.set(name)?;
        self.text.clear();
        if copy.is_mapped {
            // The loader will recognise it, and ask no more: no call would close a descriptor.
            return self.text.append(copy.path().to_bytes());
        }
        // A debugger sees the name until the library is mapped: it must lead to the file for it,
        // too.
        self.text.append(b"/proc/")?;
        self.text.append_number(sys::pid())?;
        self.text.append(b"/fd/")?;
        self.text.append_number(u32::try_from(copy.file.0).ok()?)
    }

    /// Holds the descriptor, if the text leads to its file.
    fn keep(&mut self, copy: Opened) -> Option<*const c_char> {
        let text = CStr::from_bytes_with_nul(self.text.bytes.get(..=self.text.len)?).ok()?;
        let (there, meant) = (sys::stat_at(libc::AT_FDCWD, text, 0)?, sys::fstat(copy.file.0)?);
        self.file = (meant.st_dev, meant.st_ino);
        if (there.st_dev, there.st_ino) != self.file {
            return None;
        }
        self.version = copy.version.0;
        if !copy.is_mapped {
            self.descriptor = copy.file.0 + 1;
            core::mem::forget(copy.file);
        }
        Some(self.text.bytes.as_ptr().cast())
    }

    /// The loader has opened what was answered, or never will.
    pub fn settle(&mut self) {
        self.version = 0;
        let Some(fd) = self.descriptor.checked_sub(1).filter(|fd| *fd >= 0) else { return };
        self.descriptor = 0;
        // The program may have closed it, and opened another file under its number.
        if sys::fstat(fd).is_some_and(|st| (st.st_dev, st.st_ino) == self.file) {
            sys::close(fd);
        }
    }

    /// A library was mapped: the copy that it was mapped from, if it was answered. Gives it the
    /// name and the directory that were meant.
    ///
    /// # Safety
    /// `map` is the loader's, and the loader's lock is held.
    pub unsafe fn opened(&mut self, map: *mut LinkMap, origin: &Origin) -> Option<CopyName> {
        // SAFETY: by contract.
        let name = unsafe { (*map).name() };
        let version = (self.version != 0).then_some(CopyName(self.version))?;
        match self.used {
            Use::Candidate => (name == self.name.get()).then_some(version),
            Use::Name if name == self.text.get() => {
                // SAFETY: a copy of the text, which is no shorter than the name.
                unsafe {
                    put((*map).name.cast(), self.name.get());
                    origin.put_right(map, directory(self.text.get()), self.directory.get());
                }
                Some(version)
            }
            Use::Name => None,
        }
    }
}
