//! What the PFS is expected to have at each name when the turn of a claim comes: what it had when
//! the call was made, or what the agent has published there since. For a name that the job had
//! changed before, and that is pending, it is what the claim before expects.

use super::claims::ClaimKey;
use monarch_abi::outputs::found;
use std::collections::HashMap;

/// What is expected, by claim, as [`monarch_abi::outputs::found`] has it.
#[derive(Debug, Default)]
pub(super) struct Expected(HashMap<ClaimKey, u64>);

impl Expected {
    /// Sets what is expected for a claim.
    pub(super) fn set(&mut self, key: ClaimKey, found: u64) {
        if found == found::UNKNOWN {
            self.0.remove(&key);
        } else {
            self.0.insert(key, found);
        }
    }

    /// What is expected for a claim is expected for another one of the same name.
    pub(super) fn copy(&mut self, from: ClaimKey, to: ClaimKey) {
        self.set(to, self.of(from));
    }

    /// What is expected for a claim.
    pub(super) fn of(&self, key: ClaimKey) -> u64 {
        self.0.get(&key).copied().unwrap_or(found::UNKNOWN)
    }

    /// Forgets all but these claims.
    pub(super) fn retain(&mut self, is_needed: impl Fn(ClaimKey) -> bool) {
        self.0.retain(|key, _| is_needed(*key));
    }
}
