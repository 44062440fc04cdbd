//! Tags of bytes: who does not know the key can neither make one nor change what it is about.
//!
//! A tag is AEGISMAC-128L (`draft-irtf-cfrg-aegis-aead`, 16 bytes) of what the bytes are, and of
//! the bytes. It costs about as much as an unkeyed checksum where the processor has AES
//! instructions. The tag of a part of a file is the same for all who ask for it, so that it is
//! computed once and the kernel sends the bytes (`sendfile`): no process reads them for it.
//!
//! Nonces: for parts of files the number of their index (16 bytes), for bodies the number of their
//! message. A key and a nonce of this MAC may serve many messages, as none is encrypted with them:
//! the library's own default is one nonce for all.

use crate::hex;
use aegis::aegis128l::Aegis128LMac;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use subtle::ConstantTimeEq;

/// Bytes of a tag.
pub(crate) const TAG_BYTES: usize = 16;

/// A tag. Comparing two takes the same time wherever they differ.
#[derive(Clone, Copy)]
pub struct Tag([u8; TAG_BYTES]);

impl Tag {
    /// The tag with these bytes.
    pub(crate) const fn from_bytes(bytes: [u8; TAG_BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub(crate) const fn to_bytes(self) -> [u8; TAG_BYTES] {
        self.0
    }
}

impl PartialEq for Tag {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Tag {}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({self})")
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

/// A text that is no tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a tag is 32 hexadecimal digits")]
pub struct NoTag;

impl FromStr for Tag {
    type Err = NoTag;

    fn from_str(text: &str) -> Result<Self, NoTag> {
        hex::decode(text).map(Self).ok_or(NoTag)
    }
}

/// A key of tags.
#[derive(Clone)]
pub struct TagKey([u8; 16]);

impl fmt::Debug for TagKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TagKey(..)")
    }
}

/// A tag that is being made, of bytes that come in pieces.
pub struct Tagger(Aegis128LMac<TAG_BYTES>);

impl fmt::Debug for Tagger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tagger(..)")
    }
}

impl TagKey {
    /// The first half of a derived key.
    #[must_use]
    pub fn new(derived: [u8; 32]) -> Self {
        let mut key = [0; 16];
        key.copy_from_slice(&derived[..16]);
        Self(key)
    }

    /// Begins the tag of some bytes of a file, which is named by its index and its number there.
    #[must_use]
    pub fn of_file(&self, index: [u8; 16], id: u32, range: &Range<u64>) -> Tagger {
        let mut what = [0; 32];
        what[..8].copy_from_slice(b"of-file\0");
        what[8..16].copy_from_slice(&u64::from(id).to_le_bytes());
        what[16..24].copy_from_slice(&range.start.to_le_bytes());
        what[24..].copy_from_slice(&range.end.to_le_bytes());
        self.begin(&index, &what)
    }

    /// The tag of a body, which is that of the message with this number.
    #[must_use]
    pub fn of_body(&self, message: u64, body: &[u8]) -> Tag {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&message.to_le_bytes());
        let mut tagger = self.begin(&nonce, &[0; 32]);
        tagger.update(body);
        tagger.finish()
    }

    fn begin(&self, nonce: &[u8; 16], what: &[u8; 32]) -> Tagger {
        let mut tagger = Tagger(Aegis128LMac::new_with_nonce(&self.0, nonce));
        tagger.update(what);
        tagger
    }
}

impl Tagger {
    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The tag of all bytes that were taken.
    #[must_use]
    pub fn finish(self) -> Tag {
        Tag(self.0.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vector of the draft for AEGISMAC-128L, so that the library and the description stay
    /// one.
    #[test]
    fn the_mac_is_that_of_the_draft() {
        let key: [u8; 16] = hex::decode("10010000000000000000000000000000").unwrap();
        let nonce: [u8; 16] = hex::decode("10000200000000000000000000000000").unwrap();
        let data: Vec<u8> = (0..35).collect();
        let mut tagger = Tagger(Aegis128LMac::new_with_nonce(&key, &nonce));
        tagger.update(&data);
        assert_eq!(tagger.finish().to_string(), "d3f09b2842ad301687d6902c921d7818");
    }

    fn tag(key: u8, index: u8, id: u32, range: Range<u64>, pieces: &[&[u8]]) -> Tag {
        let mut tagger = TagKey::new([key; 32]).of_file([index; 16], id, &range);
        pieces.iter().for_each(|piece| tagger.update(piece));
        tagger.finish()
    }

    #[test]
    fn a_tag_is_of_one_part_of_one_file_and_its_bytes() {
        let one = tag(1, 2, 3, 4..7, &[b"abc"]);
        assert_eq!(one, tag(1, 2, 3, 4..7, &[b"a", b"", b"bc"]));
        for other in [
            tag(9, 2, 3, 4..7, &[b"abc"]),
            tag(1, 9, 3, 4..7, &[b"abc"]),
            tag(1, 2, 9, 4..7, &[b"abc"]),
            tag(1, 2, 3, 3..6, &[b"abc"]),
            tag(1, 2, 3, 4..8, &[b"abc"]),
            tag(1, 2, 3, 4..7, &[b"abd"]),
            TagKey::new([1; 32]).of_body(4, b"abc"),
        ] {
            assert_ne!(one, other);
        }
        assert_ne!(TagKey::new([1; 32]).of_body(4, b"abc"), TagKey::new([1; 32]).of_body(5, b"abc"));
    }

    #[test]
    fn a_tag_survives_its_header() {
        let one = tag(1, 2, 3, 4..7, &[b"abc"]);
        assert_eq!(one.to_string().parse(), Ok(one));
        assert_eq!("d3f09b".parse::<Tag>(), Err(NoTag));
        assert_eq!(format!("{:?}", TagKey::new([7; 32])), "TagKey(..)");
    }
}
