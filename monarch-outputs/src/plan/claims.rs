//! What each name is for the job, and what lies below that.

use super::step::Claim;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Order of claims on a name: the record, and which of its names.
pub(super) type ClaimKey = (u64, u32);

/// The claims on all names.
#[derive(Debug, Default)]
pub(super) struct Claims(HashMap<Vec<u8>, BTreeMap<ClaimKey, Claim>>);

impl Claims {
    /// Adds a claim.
    pub(super) fn set(&mut self, name: &[u8], key: ClaimKey, claim: Claim) {
        self.0.entry(name.to_vec()).or_default().insert(key, claim);
    }

    /// Takes a claim away; it.
    pub(super) fn remove(&mut self, name: &[u8], key: ClaimKey) -> Option<Claim> {
        let claims = self.0.get_mut(name)?;
        let claim = claims.remove(&key);
        if claims.is_empty() {
            self.0.remove(name);
        }
        claim
    }

    /// A claim on a name.
    pub(super) fn at(&self, name: &[u8], key: ClaimKey) -> Option<&Claim> {
        self.0.get(name)?.get(&key)
    }

    /// Whether there is any claim on a name.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.0.contains_key(name)
    }

    /// The last claim on a name before one.
    pub(super) fn before(&self, name: &[u8], key: ClaimKey) -> Option<(ClaimKey, &Claim)> {
        self.0.get(name)?.range(..key).next_back().map(|(key, claim)| (*key, claim))
    }

    /// Whether an earlier claim says that the PFS has something of the name, or will have it.
    pub(super) fn has_below(&self, name: &[u8], key: ClaimKey) -> bool {
        self.has_below_but(name, key, &BTreeSet::new())
    }

    /// The same, but for these claims.
    pub(super) fn has_below_but(&self, name: &[u8], key: ClaimKey, but: &BTreeSet<ClaimKey>) -> bool {
        let counts = |(key, claim): (&ClaimKey, &Claim)| *claim != Claim::Left && !but.contains(key);
        self.0.get(name).is_some_and(|claims| claims.range(..key).any(counts))
    }

    /// The last claim on a name: what the job sees.
    pub(super) fn last(&self, name: &[u8]) -> Option<(ClaimKey, &Claim)> {
        self.0.get(name)?.last_key_value().map(|(key, claim)| (*key, claim))
    }

    /// A claim on a name, and those that came after it.
    pub(super) fn since(&self, name: &[u8], key: ClaimKey) -> impl Iterator<Item = ClaimKey> + use<'_> {
        self.0.get(name).into_iter().flat_map(move |claims| claims.range(key..).map(|(key, _)| *key))
    }

    /// All names, with all claims on each.
    pub(super) fn all(&self) -> impl Iterator<Item = (&[u8], &BTreeMap<ClaimKey, Claim>)> {
        self.0.iter().map(|(name, claims)| (name.as_slice(), claims))
    }

    /// All names, with the last claim on each.
    pub(super) fn names(&self) -> impl Iterator<Item = (&[u8], &Claim)> {
        self.0.iter().filter_map(|(name, claims)| Some((name.as_slice(), claims.last_key_value()?.1)))
    }
}
