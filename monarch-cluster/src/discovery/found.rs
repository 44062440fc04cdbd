//! What a list of nodes says.

use super::local::Env;

/// What a job says about its nodes.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The nodes.
    pub(super) members: Vec<String>,
    /// Under which names this node may be among them, besides its host name.
    pub(super) names: Vec<String>,
    /// Which of them this node is, if it is not found by name.
    pub(super) rank: Option<usize>,
    /// How many there are; 0: nothing was found.
    pub(super) expected: usize,
    /// Whether `members` are only the first node and this one.
    pub(super) partial: bool,
    /// Where it stands, for messages.
    pub(super) origin: String,
}

impl Found {
    pub(super) fn new(members: Vec<String>, origin: &str) -> Self {
        Self { expected: members.len().max(1), members, origin: origin.to_owned(), ..Self::default() }
    }
}

/// A variable that is set to something.
pub(super) fn set(env: &Env<'_>, name: &str) -> Option<String> {
    env(name).filter(|text| !text.trim().is_empty())
}
