//! Finding the next definition of each symbol.
//!
//! `dlsym` is not used: it allocates, takes locks, and its symbol version moved (GLIBC_2.34), which
//! would tie the library to the glibc it was linked with. Instead one pass of `dl_iterate_phdr`
//! looks all symbols up in the hash tables of the objects behind the shim, in load order, so that
//! other preloaded libraries (Darshan, XALT) get their turn.

use crate::symbols::{COUNT, NAMES, Sym};
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static NEXT: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

/// Address of the next definition; 0 when there is none.
#[inline]
#[must_use]
pub fn address(sym: Sym) -> usize {
    let a = NEXT[sym as usize].load(Ordering::Relaxed);
    if a == 0 { resolve_late(sym) } else { a }
}

/// Ends this thread here if it was cancelled: the C library would have done so in the call that the
/// shim makes past it.
#[inline]
pub fn test_cancel() {
    let address = NEXT[Sym::pthread_testcancel as usize].load(Ordering::Relaxed);
    if address != 0 {
        // SAFETY: the address of the C function of this name, whose type this is.
        let test: extern "C" fn() = unsafe { core::mem::transmute(address) };
        test();
    }
}

/// For calls before the constructor of the shim has run.
#[cold]
fn resolve_late(sym: Sym) -> usize {
    resolve_all();
    NEXT[sym as usize].load(Ordering::Relaxed)
}

struct Walk {
    passed_us: bool,
    here: usize,
    missing: usize,
}

/// Whether the object that says which version of the GNU C library this is also lists the loaded
/// objects.
static IS_GLIBC: AtomicBool = AtomicBool::new(false);

/// Whether the C library is the GNU one. Others have other streams and structures; there we only
/// pass through. (A library that lends its names to another C library, as gcompat does, is not it;
/// one that wraps `dl_iterate_phdr`, as ThreadSanitizer's runtime does, may stand before it.)
#[must_use]
pub fn is_glibc() -> bool {
    IS_GLIBC.load(Ordering::Relaxed)
}

/// Whether a library between the shim and the C library has a `chroot` of its own.
static CHROOT_IS_WRAPPED: AtomicBool = AtomicBool::new(false);

/// Whether only a library behind the shim knows which file a path names: it wraps `chroot`, as
/// libraries do that translate paths (fakechroot, pseudo).
#[must_use]
pub fn paths_are_translated() -> bool {
    CHROOT_IS_WRAPPED.load(Ordering::Relaxed)
}

/// Looks up every symbol that is not known yet.
pub fn resolve_all() {
    let mut walk = Walk { passed_us: false, here: resolve_all as *const () as usize, missing: COUNT };
    // SAFETY: the callback has the right type and the pointer is to a Walk that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut walk).cast()) };
    for (sym, address) in crate::fallback::all() {
        let _ = NEXT[sym as usize].compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// One loaded object.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: both pointers are what dl_iterate_phdr and resolve_all gave.
    let (info, walk) = unsafe { (&*info, &mut *data.cast::<Walk>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader says where the program headers are and how many.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
    let base = info.dlpi_addr as usize;
    if !walk.passed_us {
        walk.passed_us = headers.iter().any(|h| {
            let start = base.wrapping_add(h.p_vaddr as usize);
            h.p_type == libc::PT_LOAD && (start..start.wrapping_add(h.p_memsz as usize)).contains(&walk.here)
        });
        return 0;
    }
    let Some(dynamic) = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC) else { return 0 };
    // SAFETY: a loaded object with a dynamic section.
    if let Some(object) = unsafe { Object::new(base, base.wrapping_add(dynamic.p_vaddr as usize)) } {
        let mut is_c_library = false;
        for ((slot, name), hashes) in NEXT.iter().zip(NAMES).zip(&HASHES) {
            if slot.load(Ordering::Relaxed) == 0
                && let Some(address) = object.find(name, *hashes)
            {
                slot.store(address, Ordering::Relaxed);
                walk.missing -= 1;
                if core::ptr::eq(slot, &raw const NEXT[Sym::gnu_get_libc_version as usize]) {
                    is_c_library = object.find(LISTS_OBJECTS.0, LISTS_OBJECTS.1).is_some();
                }
            }
        }
        if is_c_library {
            let chroot = Sym::chroot as usize;
            let next = NEXT[chroot].load(Ordering::Relaxed);
            let is_wrapped = object.find(NAMES[chroot], HASHES[chroot]).is_some_and(|own| own != next);
            CHROOT_IS_WRAPPED.store(is_wrapped, Ordering::Relaxed);
            IS_GLIBC.store(true, Ordering::Relaxed);
        }
    }
    c_int::from(walk.missing == 0)
}

/// The tables of a loaded object that a lookup needs.
struct Object {
    base: usize,
    symbols: *const libc::Elf64_Sym,
    strings: *const i8,
    versions: *const u16,
    gnu_hash: *const u32,
    sysv_hash: *const u32,
}

const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;
/// A version that only objects linked against it may use.
const HIDDEN: u16 = 0x8000;

/// The GNU hash of a name.
const fn gnu_hash(name: &CStr) -> u32 {
    let bytes = name.to_bytes();
    let mut h = 5381u32;
    let mut i = 0;
    while i < bytes.len() {
        h = h.wrapping_mul(33).wrapping_add(bytes[i] as u32);
        i += 1;
    }
    h
}

/// The System V hash of a name.
const fn sysv_hash(name: &CStr) -> u32 {
    let bytes = name.to_bytes();
    let mut h = 0u32;
    let mut i = 0;
    while i < bytes.len() {
        h = (h << 4).wrapping_add(bytes[i] as u32);
        let g = h & 0xf000_0000;
        h = (h ^ g >> 24) & !g;
        i += 1;
    }
    h
}

const HASHES: [(u32, u32); COUNT] = {
    let mut out = [(0, 0); COUNT];
    let mut i = 0;
    while i < COUNT {
        out[i] = (gnu_hash(NAMES[i]), sysv_hash(NAMES[i]));
        i += 1;
    }
    out
};

/// The name and the hashes of the function that lists the loaded objects.
const LISTS_OBJECTS: (&CStr, (u32, u32)) = {
    let name = c"dl_iterate_phdr";
    (name, (gnu_hash(name), sysv_hash(name)))
};

impl Object {
    /// Reads the dynamic section at `dynamic`.
    ///
    /// # Safety
    /// It must be the dynamic section of an object loaded at `base`.
    unsafe fn new(base: usize, dynamic: usize) -> Option<Self> {
        let mut o = Self {
            base,
            symbols: core::ptr::null(),
            strings: core::ptr::null(),
            versions: core::ptr::null(),
            gnu_hash: core::ptr::null(),
            sysv_hash: core::ptr::null(),
        };
        let mut at = dynamic as *const [u64; 2];
        loop {
            // SAFETY: the section ends with DT_NULL.
            let [tag, value] = unsafe { *at };
            // glibc relocates these addresses in place, musl and the vDSO do not.
            let address = if (value as usize) < base { base.wrapping_add(value as usize) } else { value as usize };
            match tag {
                DT_NULL => break,
                DT_HASH => o.sysv_hash = address as *const u32,
                DT_STRTAB => o.strings = address as *const i8,
                DT_SYMTAB => o.symbols = address as *const libc::Elf64_Sym,
                DT_GNU_HASH => o.gnu_hash = address as *const u32,
                DT_VERSYM => o.versions = address as *const u16,
                _ => {}
            }
            // SAFETY: as above.
            at = unsafe { at.add(1) };
        }
        (!o.symbols.is_null() && !o.strings.is_null()).then_some(o)
    }

    /// Address of the default version of a defined symbol; of any version when none is the default
    /// (compatibility symbols such as `__xstat` in newer glibc).
    fn find(&self, name: &CStr, (gnu, sysv): (u32, u32)) -> Option<usize> {
        // SAFETY: the tables are those of a loaded object.
        unsafe { if self.gnu_hash.is_null() { self.find_sysv(name, sysv) } else { self.find_gnu(name, gnu) } }
    }

    /// # Safety
    /// `gnu_hash` must not be null.
    unsafe fn find_gnu(&self, name: &CStr, hash: u32) -> Option<usize> {
        // SAFETY: layout of DT_GNU_HASH: nbuckets, symoffset, bloom size, bloom shift, bloom,
        // buckets, chains.
        unsafe {
            let h = self.gnu_hash;
            let (nbuckets, offset, bloom_size, shift) = (*h, *h.add(1), *h.add(2), *h.add(3));
            if nbuckets == 0 || bloom_size == 0 {
                return None;
            }
            let bloom = h.add(4).cast::<u64>();
            let word = bloom.add((hash / 64 % bloom_size) as usize).read_unaligned();
            let mask = 1u64 << (hash % 64) | 1u64 << ((hash >> shift) % 64);
            if word & mask != mask {
                return None;
            }
            let buckets = bloom.add(bloom_size as usize).cast::<u32>();
            let chains = buckets.add(nbuckets as usize);
            let mut at = *buckets.add((hash % nbuckets) as usize);
            if at < offset {
                return None;
            }
            let mut hidden = None;
            loop {
                let chain = *chains.add((at - offset) as usize);
                if chain | 1 == hash | 1 {
                    match self.candidate(at, name) {
                        Some((a, false)) => return Some(a),
                        Some((a, true)) => hidden = hidden.or(Some(a)),
                        None => {}
                    }
                }
                if chain & 1 == 1 {
                    return hidden;
                }
                at += 1;
            }
        }
    }

    /// # Safety
    /// The tables must be those of a loaded object.
    unsafe fn find_sysv(&self, name: &CStr, hash: u32) -> Option<usize> {
        if self.sysv_hash.is_null() {
            return None;
        }
        // SAFETY: layout of DT_HASH: nbuckets, nchains, buckets, chains.
        unsafe {
            let h = self.sysv_hash;
            let nbuckets = *h;
            if nbuckets == 0 {
                return None;
            }
            let buckets = h.add(2);
            let chains = buckets.add(nbuckets as usize);
            let mut at = *buckets.add((hash % nbuckets) as usize);
            while at != 0 {
                if let Some((a, _)) = self.candidate(at, name) {
                    return Some(a);
                }
                at = *chains.add(at as usize);
            }
        }
        None
    }

    /// Address of symbol number `at` if it is a defined function of this name, and whether its
    /// version is hidden.
    ///
    /// # Safety
    /// `at` must be a valid symbol number.
    unsafe fn candidate(&self, at: u32, name: &CStr) -> Option<(usize, bool)> {
        // SAFETY: by contract.
        unsafe {
            let s = &*self.symbols.add(at as usize);
            let kind = s.st_info & 0xf;
            let function = kind == 2 || kind == 0;
            if s.st_shndx == 0 || !function || !same(self.strings.add(s.st_name as usize), name) {
                return None;
            }
            let hidden = !self.versions.is_null() && *self.versions.add(at as usize) & HIDDEN != 0;
            Some((self.base.wrapping_add(s.st_value as usize), hidden))
        }
    }
}

/// Whether the C string at `p` is `name`.
///
/// # Safety
/// `p` must point to a string that ends.
unsafe fn same(p: *const i8, name: &CStr) -> bool {
    name.to_bytes_with_nul().iter().enumerate().all(|(i, &c)| {
        // SAFETY: reads no further than the first difference, hence not past the end.
        unsafe { *p.add(i) as u8 == c }
    })
}
