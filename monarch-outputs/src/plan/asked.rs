//! What another node asks: whether something of a name is to be published here.

use super::entry::Entry;
use super::file::parent;
use super::place::Place;
use super::tables::Tables;
use monarch_abi::outputs::question::Subject;

/// A path and the paths of the directories above it, the longest first.
fn with_parents(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(path), |path| Some(parent(path))).take_while(|path| !path.is_empty())
}

/// The names that an entry makes or removes.
fn names_of<'p>(tables: &'p Tables, entry: &'p Entry) -> impl Iterator<Item = &'p [u8]> {
    let (one, file) = match entry {
        Entry::File(id) => (None, tables.files.get(id)),
        Entry::Former(_, former) => (Some(&former.name), None),
        Entry::Unlink(name, ..) | Entry::Rmdir(name, _) | Entry::Symlink(name, ..) => (Some(name), None),
    };
    let left = file.into_iter().flat_map(|file| file.left.iter().map(|left| &left.name));
    one.into_iter().chain(file.map(|file| &file.name)).chain(left).map(Vec::as_slice)
}

/// The last place at which a plan publishes something of a path. Files that are open have none.
pub(super) fn place_of(tables: &Tables, subject: Subject, path: &[u8]) -> Option<Place> {
    // What lies above decides where the path leads.
    let is_on_the_way = |name: &[u8]| with_parents(path).any(|above| above == name);
    let is_concerned = |entry: &Entry| {
        names_of(tables, entry).any(|name| match subject {
            Subject::Names => parent(name) == path,
            Subject::Name => is_on_the_way(name),
            Subject::Tree => is_on_the_way(name) || with_parents(name).any(|above| above == path),
        })
    };
    if subject == Subject::Name && !with_parents(path).any(|name| tables.overlay(name).is_some()) {
        return None;
    }
    tables.queue.pending().filter(|(_, entry)| is_concerned(entry)).map(|(place, _)| place).max()
}
