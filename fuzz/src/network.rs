//! Messages from the network, and lists of nodes.

use super::input::Input;
use super::sample::{held, scratch};
use super::walk;
use monarch_abi::index::{INDEX_MAGIC, IndexHeader};
use monarch_abi::names::{Head, LISTING_HEAD_LEN, item};
use monarch_abi::state::Bucket;
use monarch_core::cluster::directory::fileset;
use monarch_core::cluster::discovery::{MAX_NAMES, parse_hostlist, parse_nodes};
use monarch_core::cluster::http::{ByteRange, auth, head, path};
use monarch_core::cluster::index_image::{pack, unpack};
use monarch_core::cluster::membership::is_message;
use monarch_core::cluster::node::{decode_corruption_reports, encode_corruption_reports, is_welcome};
use monarch_core::index::{Directory, decode_listings, decode_paths, encode_listings, encode_paths};
use monarch_core::shm::IndexBytes;
use std::mem::offset_of;

thread_local! {
    static DIR: tempfile::TempDir = scratch();
}

/// Values of `Authorization` and `WWW-Authenticate`: an accepted value is parsed to the same after
/// it was formatted.
pub(crate) fn authorization(bytes: &[u8]) {
    let Ok(value) = str::from_utf8(bytes) else { return };
    if let Some(taken) = auth::Credentials::parse(value) {
        assert!(auth::is_name(&taken.node));
        assert_eq!(auth::Credentials::parse(&taken.to_string()), Some(taken));
    }
    if let Ok(nonce) = auth::parse_challenge(value) {
        assert_eq!(auth::parse_challenge(&auth::challenge(nonce)), Ok(nonce));
    }
}

/// Reports of damaged copies.
pub(crate) fn complaint(bytes: &[u8]) {
    if let Some(reports) = decode_corruption_reports(bytes) {
        assert!(reports.iter().all(|c| c.range.start < c.range.end));
        assert_eq!(encode_corruption_reports(&reports), bytes);
    }
}

/// Sets of files in messages between nodes.
pub(crate) fn fileset(bytes: &[u8]) {
    let mut input = Input(bytes);
    let files = input.u32() % (1 << 20);
    if let Ok(sets) = fileset::decode(input.0, |_| Some(files)) {
        let mut again = Vec::new();
        for (index, ids) in &sets {
            assert!(ids.windows(2).all(|w| w[0] < w[1]) && ids.iter().all(|id| *id < files));
            fileset::encode(index, ids, &mut again);
        }
        assert_eq!(fileset::decode(&again, |_| Some(files)).unwrap(), sets);
    }
}

/// Messages of gossip, after their authentication.
pub(crate) fn gossip(bytes: &[u8]) {
    let _ = is_message(bytes);
}

/// Lists of nodes, as launchers and users write them.
pub(crate) fn hostlist(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    for parsed in [parse_hostlist(text), parse_nodes(text)].into_iter().flatten() {
        assert!(parsed.len() <= MAX_NAMES && parsed.iter().all(|name| !name.is_empty()));
    }
}

/// Indexes from another node. Random bytes seldom have the right checksum: [`index`] tests the code
/// after it.
pub(crate) fn image(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    // After the magic number.
    if bytes.len() >= 8 {
        bytes[..8].copy_from_slice(b"MONIMG01");
    }
    DIR.with(|dir| {
        if let Ok(image) = unpack(&bytes, 1 << 20, &held(dir)) {
            assert!(image.index.len() + image.buckets.len() <= 1 << 20);
        }
    });
}

/// Indexes with the right checksum, as an agent and its readers use a received one.
pub(crate) fn index(bytes: &[u8]) {
    let mut input = Input(bytes);
    let buckets = vec![0; usize::from(input.u8()) * size_of::<Bucket>()];
    let mut index = input.0.to_vec();
    // Fields that a fuzzer would have to guess.
    let len = index.len() as u64;
    let known: [(usize, &[u8]); 4] = [
        (offset_of!(IndexHeader, magic), &INDEX_MAGIC.to_le_bytes()),
        (offset_of!(IndexHeader, layout), &monarch_abi::LAYOUT.to_le_bytes()),
        (offset_of!(IndexHeader, len), &len.to_le_bytes()),
        (offset_of!(IndexHeader, buckets), &((buckets.len() / size_of::<Bucket>()) as u64).to_le_bytes()),
    ];
    for (at, bytes) in known {
        let Some(place) = index.get_mut(at..at + bytes.len()) else { return };
        place.copy_from_slice(bytes);
    }
    DIR.with(|dir| {
        let Ok(image) = unpack(&pack(&index, &buckets, true), 1 << 20, &held(dir)) else { return };
        let Some(index) = IndexBytes(&image.index).open() else { panic!("it was opened before") };
        walk::index(&index);
    });
}

/// Answers to a newcomer.
pub(crate) fn join(bytes: &[u8]) {
    let _ = is_welcome(bytes);
}

/// Values of `Range`, against files of any length: the first 8 bytes.
pub(crate) fn range(bytes: &[u8]) {
    let mut input = Input(bytes);
    let len = input.u64();
    let Ok(value) = str::from_utf8(input.0) else { return };
    if let Ok(Some(range)) = ByteRange::parse(value)
        && let Some(part) = range.resolve(len)
    {
        assert!(part.start < part.end && part.end <= len);
    }
}

/// Heads of requests: nothing panics, accepted heads are within their bounds, and further bytes
/// after the head change nothing.
pub(crate) fn request(bytes: &[u8]) {
    let Ok(Some((taken, len))) = head::request(bytes) else { return };
    assert!(len <= bytes.len() && len <= head::HEAD_MAX && taken.body <= head::BODY_MAX);
    assert!(path::split(&taken.path).is_some() && !taken.path.contains("/../"));
    assert_eq!(head::request(&bytes[..len]), Ok(Some((taken, len))));
}

/// Heads of responses: nothing panics, and accepted heads are within their bounds.
pub(crate) fn response(bytes: &[u8]) {
    if let Ok(Some((taken, len))) = head::response(bytes) {
        assert!(len <= bytes.len() && len <= head::HEAD_MAX && (100..600).contains(&taken.status));
    }
}

/// Directories that another node has read, the names of those that it is to read, and what is
/// answered from such a directory.
pub(crate) fn listings(bytes: &[u8]) {
    let input = Input(bytes);
    if let Some(directory) = Directory::decode(input.0) {
        assert!(Directory::decode(&directory.encode(|_| false)).is_some_and(|again| again.len() == directory.len()));
        let listing = directory.listing().unwrap_or_default();
        let (mut at, mut seen) = (LISTING_HEAD_LEN, 0);
        while let Some((entry, next)) = item(&listing, at) {
            let _ = directory.attributes(entry.name);
            (at, seen) = (next, seen + 1);
        }
        assert!(listing.is_empty() || (at == listing.len() && seen == directory.len()));
    }
    let mut at = 0;
    while let Some((entry, next)) = item(input.0, at) {
        assert!(next > at && next <= input.0.len() && !entry.name.is_empty());
        at = next;
    }
    if let Some(head) = input.0.first_chunk().and_then(|head| Head::of(*head)) {
        assert_eq!(head.to_bytes().and_then(Head::of), Some(head));
    }
    if let Some(listings) = decode_listings(input.0) {
        let again = decode_listings(&encode_listings(&listings)).expect("what was sent arrives");
        assert!(again.iter().map(Option::is_some).eq(listings.iter().map(Option::is_some)));
    }
    if let Some(paths) = decode_paths(input.0) {
        assert_eq!(encode_paths(&paths), input.0);
    }
}
