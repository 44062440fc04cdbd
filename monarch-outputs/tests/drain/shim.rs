//! What the shim does in a process of the job, in plain Rust.

use monarch_abi::outputs::found;
use monarch_abi::outputs::names::{Link, SYMLINK, Staged, WHITEOUT, file_text, part_name};
use monarch_abi::outputs::record::{self, Header, MAX_BYTES, Op, flag};
use monarch_abi::outputs::state::{LEN, StateMap, flag as state_flag};
use monarch_abi::outputs::{DATA, JOURNAL, REMOVED_DIR, STAGED_MODE, STATE, TREE};
use monarch_outputs::tree::Tree;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// A process of the job.
pub(crate) struct Shim {
    root: PathBuf,
    staging: PathBuf,
    dir: OwnedFd,
    tree: OwnedFd,
    map: StateMap<'static>,
    instance: u64,
    /// The process that records name.
    pub(crate) pid: u32,
    /// Open counts of staged files, and the name of the last one closed.
    open: RefCell<HashMap<u64, u32>>,
}

/// A staged file that is open for writing.
pub(crate) struct Handle {
    pub(crate) file: File,
    pub(crate) staged: Staged,
}

fn dir(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

impl Shim {
    pub(crate) fn new(root: &Path, staging: &Path) -> Self {
        let state = File::options().read(true).write(true).open(staging.join(STATE)).unwrap();
        let map = StateMap::open(monarch_outputs::sys::map_forever(&state, LEN).unwrap()).unwrap();
        Self {
            root: root.to_owned(),
            staging: staging.to_owned(),
            dir: dir(staging),
            tree: dir(&staging.join(TREE)),
            instance: map.state.instance.load(Ordering::Acquire),
            map,
            pid: std::process::id(),
            open: RefCell::default(),
        }
    }

    pub(crate) fn state(&self) -> &monarch_abi::outputs::state::State {
        self.map.state
    }

    fn tree(&self) -> Tree<'_> {
        Tree::new(&self.dir, &self.tree, self.map.state)
    }

    fn locked<T>(&self, work: impl FnOnce(&File) -> T) -> T {
        let out = self.with_lock(work);
        if self.state().flags.load(Ordering::Acquire) & state_flag::NODES_ORDER != 0 {
            let last = self.state().last_entry.load(Ordering::Acquire);
            while self.state().keyed.load(Ordering::Acquire) < last {
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        }
        out
    }

    fn with_lock<T>(&self, work: impl FnOnce(&File) -> T) -> T {
        let journal = File::options().read(true).write(true).open(self.staging.join(JOURNAL)).unwrap();
        rustix::fs::flock(&journal, FlockOperation::LockExclusive).unwrap();
        let out = work(&journal);
        self.map.notify_agent();
        out
    }

    fn append(&self, journal: &File, op: Op, id: u64, flags: u16, a: &[u8], b: &[u8]) -> u64 {
        let state = self.map.state;
        let (tail, seq) = (state.tail.load(Ordering::Acquire), state.seq.load(Ordering::Acquire) + 1);
        let name = match op {
            Op::Open | Op::Unlink | Op::Symlink => Some(a),
            Op::Rename => Some(b),
            _ => None,
        };
        let header = Header {
            seq,
            id,
            flags,
            pid: self.pid,
            began_ticks: monarch_outputs::processes::began_ticks(self.pid).unwrap_or(1),
            boot: state.boot.load(Ordering::Acquire),
            found: name.map_or(found::UNKNOWN, |name| self.found(std::str::from_utf8(name).unwrap())),
            time_ns: monarch_outputs::sys::now_ns(),
            ..Header::default()
        };
        let mut out = [0; MAX_BYTES];
        let bytes = record::write(&mut out, header, op, a, b).unwrap();
        journal.write_all_at(bytes, tail).unwrap();
        if op != Op::Open {
            state.last_entry.store(seq, Ordering::Release);
        }
        state.seq.store(seq, Ordering::Release);
        state.tail.store(tail + bytes.len() as u64, Ordering::Release);
        seq
    }

    pub(crate) fn link(&self, name: &str) -> Option<Vec<u8>> {
        self.tree().read(name.as_bytes()).unwrap()
    }

    pub(crate) fn staged(&self, name: &str) -> Option<Staged> {
        match self.link(name).as_deref().and_then(Link::parse) {
            Some(Link::File(staged)) => Some(staged),
            _ => None,
        }
    }

    /// What the PFS has at a name, unless something is pending there.
    fn found(&self, name: &str) -> u64 {
        match self.link(name).as_deref().and_then(Link::parse) {
            Some(Link::File(_) | Link::Symlink(_)) => return found::UNKNOWN,
            Some(Link::Whiteout) => return found::NOTHING,
            _ => {}
        }
        let path = self.root.join(name);
        path.symlink_metadata().map_or(found::NOTHING, |meta| {
            found::thing(meta.ino(), meta.len(), meta.mtime() * 1_000_000_000 + meta.mtime_nsec())
        })
    }

    fn on_pfs(&self, name: &str) -> bool {
        self.root.join(name).symlink_metadata().is_ok()
    }

    pub(crate) fn data(&self, staged: &Staged) -> PathBuf {
        self.staging.join(DATA).join(std::str::from_utf8(&staged.name()).unwrap())
    }

    /// open(O_WRONLY | O_CREAT | O_TRUNC).
    pub(crate) fn create(&self, name: &str) -> Handle {
        self.create_mode(name, 0o644)
    }

    pub(crate) fn create_mode(&self, name: &str, mode: u32) -> Handle {
        if let Some(staged) = self.staged(name)
            && self.open.borrow().get(&staged.id).is_some_and(|n| *n > 0)
        {
            return self.reopen(name, true);
        }
        let id = self.map.state.next_id.fetch_add(1, Ordering::AcqRel);
        let path = self.root.join(name);
        let part = path.parent().unwrap().join(std::str::from_utf8(&part_name(self.instance, id)).unwrap());
        let part = File::create_new(&part).unwrap();
        part.set_permissions(PermissionsExt::from_mode(mode)).unwrap();
        let meta = part.metadata().unwrap();
        let staged = Staged { id, dev: meta.dev(), ino: meta.ino(), uid: meta.uid(), gid: meta.gid() };
        let file = File::create_new(self.data(&staged)).unwrap();
        file.set_permissions(PermissionsExt::from_mode(mode | STAGED_MODE)).unwrap();
        let flags = flag::NEW | if self.on_pfs(name) { flag::PUBLISHED } else { 0 };
        self.locked(|journal| {
            self.append(journal, Op::Open, id, flags, name.as_bytes(), &staged.name());
            self.tree().set(name.as_bytes(), &file_text(&staged)).unwrap();
        });
        self.open.borrow_mut().insert(id, 1);
        Handle { file, staged }
    }

    /// An open of a pending name for writing.
    pub(crate) fn reopen(&self, name: &str, truncates: bool) -> Handle {
        let staged = self.staged(name).expect("a pending name");
        let file = File::options().read(true).write(true).truncate(truncates).open(self.data(&staged)).unwrap();
        let flags = if truncates { flag::TRUNCATED } else { 0 };
        self.locked(|journal| {
            self.append(journal, Op::Open, staged.id, flags, name.as_bytes(), &staged.name());
        });
        *self.open.borrow_mut().entry(staged.id).or_default() += 1;
        Handle { file, staged }
    }

    pub(crate) fn close(&self, handle: Handle) {
        let id = handle.staged.id;
        drop(handle.file);
        self.record_close(id);
    }

    pub(crate) fn record_close(&self, id: u64) {
        if let Some(n) = self.open.borrow_mut().get_mut(&id) {
            *n = n.saturating_sub(1);
        }
        self.locked(|journal| self.append(journal, Op::Close, id, 0, b"", b""));
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Staged {
        let mut handle = self.create(name);
        handle.file.write_all(bytes).unwrap();
        let staged = handle.staged;
        self.close(handle);
        staged
    }

    /// rename(2) of a pending file; otherwise after a barrier.
    pub(crate) fn rename(&self, from: &str, to: &str) {
        let done = self.locked(|journal| {
            let Some(staged) = self.staged(from) else { return false };
            let flags = if self.on_pfs(from) { flag::PUBLISHED } else { 0 };
            self.append(journal, Op::Rename, staged.id, flags, from.as_bytes(), to.as_bytes());
            self.tree().set(to.as_bytes(), &file_text(&staged)).unwrap();
            // Always: the agent may be publishing the file under the old name just now.
            self.tree().set(from.as_bytes(), WHITEOUT).unwrap();
            true
        });
        if !done {
            self.barrier();
            std::fs::rename(self.root.join(from), self.root.join(to)).unwrap();
        }
    }

    pub(crate) fn unlink(&self, name: &str) {
        let plain = self.locked(|journal| {
            let link = self.link(name);
            let published = self.on_pfs(name);
            let flags = if published { flag::PUBLISHED } else { 0 };
            match link.as_deref().and_then(Link::parse) {
                Some(Link::File(staged)) => {
                    self.append(journal, Op::Unlink, staged.id, flags, name.as_bytes(), b"");
                }
                Some(Link::Symlink(_)) => {
                    self.append(journal, Op::Unlink, 0, flags, name.as_bytes(), b"");
                }
                _ if self.state().pending.load(Ordering::Acquire) == 0 => return true,
                _ => {
                    self.append(journal, Op::Unlink, 0, flags, name.as_bytes(), b"");
                }
            }
            // In any case: the agent may be publishing something of that name just now.
            self.tree().set(name.as_bytes(), WHITEOUT).unwrap();
            false
        });
        if plain {
            let _ = std::fs::remove_file(self.root.join(name));
        }
    }

    pub(crate) fn symlink(&self, name: &str, target: &str) {
        self.locked(|journal| {
            self.append(journal, Op::Symlink, 0, 0, name.as_bytes(), target.as_bytes());
            self.tree().set(name.as_bytes(), &[SYMLINK, target.as_bytes()].concat()).unwrap();
        });
    }

    pub(crate) fn rmdir(&self, name: &str) {
        self.locked(|journal| {
            self.append(journal, Op::Rmdir, 0, 0, name.as_bytes(), b"");
            self.tree().set(format!("{name}/{REMOVED_DIR}").as_bytes(), WHITEOUT).unwrap();
        });
    }

    pub(crate) fn chmod(&self, name: &str, mode: u32) {
        let staged = self.staged(name).expect("a pending name");
        std::fs::set_permissions(self.data(&staged), PermissionsExt::from_mode(mode | STAGED_MODE)).unwrap();
        self.locked(|journal| self.append(journal, Op::Attributes, staged.id, 0, name.as_bytes(), b""));
    }

    /// Waits until everything up to now is published.
    pub(crate) fn barrier(&self) {
        let seq = self.state().seq.load(Ordering::Acquire);
        let began = std::time::Instant::now();
        while self.state().published.load(Ordering::Acquire) < seq {
            assert!(began.elapsed().as_secs() < 20, "the barrier");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
