//! What the PFS has refused, and when it is tried again.

use crate::copy::Failure;
use crate::errors::{Backoff, Remedy, advice, advice_in_tier, remedy, remedy_in_tier};
use crate::plan::parent;
use rustix::io::Errno;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long the PFS refuses an entry before creates below the root get the error: what passes
/// sooner, the job never sees.
const HOLD_AFTER: Duration = Duration::from_secs(2);

/// A copy that is to be tried again.
#[derive(Debug, Default)]
pub struct Retry {
    /// When.
    pub due: Option<Instant>,
    /// Of which generation of its file.
    pub generation: u64,
    backoff: Backoff,
    /// The last error.
    pub errno: Option<Errno>,
    /// Whether that is trouble of the tier.
    is_of_tier: bool,
    /// When it failed first.
    since: Option<Instant>,
}

impl Retry {
    /// Notes a failure, to be tried again after a pause.
    pub fn failed(&mut self, failure: &Failure) {
        let now = Instant::now();
        self.errno = Some(failure.errno);
        self.is_of_tier = failure.is_of_tier;
        self.since.get_or_insert(now);
        // An attempt that was made before it was due, as for a file that was closed again, says
        // nothing new.
        if self.due.is_none_or(|due| due <= now) {
            self.due = Some(now + self.backoff.pause());
        }
    }

    /// Whether the tier is to be left alone for now.
    pub fn waits_for_tier(&self) -> bool {
        self.is_of_tier && self.due.is_some_and(|due| due > Instant::now())
    }

    /// The error that has lasted, if it does not pass by itself, and what is to be done about it.
    fn lasting(&self) -> Option<(Errno, Remedy)> {
        let is_long = self.since.is_some_and(|since| since.elapsed() >= HOLD_AFTER);
        let errno = self.errno.filter(|_| is_long)?;
        let remedy = if self.is_of_tier { remedy_in_tier } else { remedy };
        Some((errno, remedy(errno))).filter(|(_, remedy)| *remedy != Remedy::Retry)
    }
}

/// What is tried again, and why.
#[derive(Debug, Default)]
pub struct Troubles {
    /// Copies, by the numbers of their files.
    pub copies: HashMap<u64, Retry>,
    /// What went wrong with them.
    pub texts: HashMap<u64, String>,
    /// The publication of the first entry.
    pub publish: Retry,
    /// What went wrong with it.
    pub publish_text: Option<String>,
}

impl Troubles {
    /// A file has no troubles any more.
    pub fn forget(&mut self, id: u64) {
        self.copies.remove(&id);
        self.texts.remove(&id);
    }

    fn retries(&self) -> impl Iterator<Item = &Retry> {
        self.copies.values().chain([&self.publish])
    }

    /// When the next attempt is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.retries().filter_map(|retry| retry.due).min()
    }

    /// The error that creates below the root are to get, or 0.
    #[must_use]
    pub fn held_errno(&self) -> u32 {
        let mut held = self.retries().filter_map(Retry::lasting).filter(|(_, remedy)| *remedy == Remedy::Hold);
        held.next().map_or(0, |(errno, _)| errno.raw_os_error().unsigned_abs())
    }

    /// Whether the PFS refuses something, and that does not pass by itself.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.retries().any(|retry| retry.lasting().is_some())
    }
}

/// A failure as a sentence, with what to do. `tier`: the name of the tier that stages the root.
#[must_use]
pub fn sentence(failure: &Failure, tier: &str) -> String {
    let path = String::from_utf8_lossy(&failure.path);
    let Failure { what, errno, .. } = failure;
    if failure.is_of_tier {
        let of = if path.is_empty() { String::new() } else { format!(" {path}") };
        return format!("cannot {what}{of} in tier {tier}: {errno}; {}", advice_in_tier(*errno));
    }
    match (*errno, parent(&failure.path)) {
        (Errno::NOENT, b"") => format!("cannot {what} {path}: {errno}; the output root was removed: make it again"),
        (Errno::NOENT, dir) => {
            let dir = String::from_utf8_lossy(dir);
            format!("cannot {what} {path}: {errno}; the directory {dir} was removed: make it again")
        }
        (errno, _) => format!("cannot {what} {path}: {errno}; {}", advice(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_before_the_pause_is_over_do_not_lengthen_it() {
        let mut retry = Retry::default();
        (0..30).for_each(|_| retry.failed(&Failure::new("write", b"a")(Errno::IO)));
        let due = retry.due.expect("a pause");
        assert!(due <= Instant::now() + Duration::from_secs(1), "{:?}", due - Instant::now());
    }

    #[test]
    fn what_does_not_pass_by_itself_is_refused_and_only_some_of_it_is_given_to_creates() {
        let of = |failure: Failure| {
            let mut troubles = Troubles::default();
            troubles.publish.failed(&failure);
            assert!(!troubles.is_refused(), "it has not lasted");
            troubles.publish.since = Instant::now().checked_sub(HOLD_AFTER);
            (troubles.is_refused(), troubles.held_errno())
        };
        let on_pfs = |errno| Failure::new("write", b"a")(errno);
        assert_eq!(of(on_pfs(Errno::DQUOT)), (true, libc::EDQUOT.unsigned_abs()));
        assert_eq!(of(on_pfs(Errno::NOENT)), (true, 0));
        assert_eq!(of(on_pfs(Errno::IO)), (false, 0));
        let in_tier = |errno| Failure::of_tier("write the agent's log", b"")(errno);
        assert_eq!(of(in_tier(Errno::NOSPC)), (true, 0), "a full tier is no error of creates");
        assert_eq!(of(in_tier(Errno::IO)), (false, 0));
    }

    #[test]
    fn trouble_of_the_tier_names_the_tier_and_its_disk() {
        let log = Failure::of_tier("write the agent's log", b"")(Errno::NOSPC);
        let text = sentence(&log, "nvme");
        assert!(text.starts_with("cannot write the agent's log in tier nvme: No space left"), "{text}");
        assert!(text.ends_with("; free space on the tier's disk"), "{text}");
        let text = sentence(&Failure::of_tier("read the staged file of", b"a/b")(Errno::IO), "nvme");
        assert!(text.starts_with("cannot read the staged file of a/b in tier nvme: "), "{text}");
    }
}
