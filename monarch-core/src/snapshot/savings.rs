//! [`Savings`]: what a job read below its roots, what the PFS sent for it, and the shares of both.
//!
//! Headline, report and status take their figures from here, so that they agree. All shares are
//! rounded down: 100 % is all.

use super::status::Opens;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Bytes and opens of a job, and of them those that the PFS had to serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Savings {
    /// Bytes read below the roots. A file that was opened as a whole counts with its size, whatever
    /// part of it was read; chunks count with the bytes read.
    pub read_bytes: u64,
    /// Of `read_bytes`, those of large files that were opened or mapped as complete copies: how
    /// much of them was read is not known.
    pub uncertain_bytes: u64,
    /// Bytes that the PFS sent: for copies, prefetched ones included, and for reads that got no
    /// copy.
    pub sent_bytes: u64,
    /// Opens for reading of indexed files.
    pub opens: u64,
    /// Opens at the PFS, by the job and by the agent.
    pub pfs_opens: u64,
    /// Opens of paths that are not in the index, or in another mount: their bytes are not known,
    /// and in none of the other figures.
    pub unknown_opens: u64,
    /// Seconds that readers waited for copies, all together.
    pub wait_s: f64,
}

/// Counters of opens that went to the PFS.
const PFS_REASONS: [&str; 8] = ["absent", "large", "no_room", "refused", "changed", "written", "deadline", "vanished"];

/// Returns the sum of opens that went to the PFS.
fn opens_at_pfs(counters: &BTreeMap<String, u64>) -> u64 {
    PFS_REASONS.iter().filter_map(|name| counters.get(*name)).sum()
}

/// What readers got from copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FromCopies {
    /// Opens that copies served, whole or in chunks.
    pub opens: u64,
    /// Bytes read from copies, counted as [`Savings::read_bytes`].
    pub bytes: u64,
}

impl FromCopies {
    /// Computes it from counters of processes.
    #[must_use]
    pub fn of(counters: &BTreeMap<String, u64>) -> Self {
        let sum = |names: [&str; 3]| names.iter().filter_map(|name| counters.get(*name)).sum();
        Self { opens: sum(["hits", "waited", "chunked"]), bytes: sum(["hit_bytes", "mapped_bytes", "chunk_bytes"]) }
    }
}

impl Savings {
    /// Returns the opens for reading of indexed files among counters of processes.
    #[must_use]
    pub fn opens_of(counters: &BTreeMap<String, u64>) -> u64 {
        FromCopies::of(counters).opens + opens_at_pfs(counters)
    }

    /// Computes them from counters of processes, counters of the agent, and the agent's opens.
    #[must_use]
    pub fn of(counters: &BTreeMap<String, u64>, agent: &BTreeMap<String, u64>, pfs_opens: &[Opens]) -> Self {
        let get = |name: &str| counters.get(name).copied().unwrap_or(0);
        let of_agent = |name: &str| agent.get(name).copied().unwrap_or(0);
        let missed = get("miss_bytes") + get("chunk_miss_bytes");
        let to_pfs = opens_at_pfs(counters);
        let by_agent: u64 = pfs_opens.iter().map(|o| o.opens).sum();
        // A report of an earlier version has no `source_bytes`.
        let copied = agent.get("source_bytes").copied().unwrap_or_else(|| of_agent("bytes_copied"));
        Self {
            read_bytes: FromCopies::of(counters).bytes + missed,
            uncertain_bytes: of_agent("whole_large_bytes") + get("mapped_bytes"),
            sent_bytes: copied + missed,
            opens: Self::opens_of(counters),
            // A large file that is served in chunks is opened at the PFS, too.
            pfs_opens: to_pfs + get("chunked") + by_agent,
            unknown_opens: get("unknown") + get("other_mount"),
            wait_s: get("wait_us") as f64 / 1e6,
        }
    }

    /// Returns the part of the headline about bytes.
    #[must_use]
    pub fn bytes(&self) -> String {
        let up_to = if self.uncertain_bytes > 0 { "up to " } else { "" };
        let sizes = sizes(self.sent_bytes, up_to, self.read_bytes);
        format!("the PFS sent {sizes} read ({up_to}{})", percent_less(self.sent_bytes, self.read_bytes))
    }
}

/// Formats how much less than `of` is `part`, rounded down to whole percent; or how much more,
/// rounded up.
#[must_use]
pub fn percent_less(part: u64, of: u64) -> String {
    let (part, of) = (u128::from(part), u128::from(of));
    if of == 0 {
        return "nothing to compare".to_owned();
    }
    if part > of {
        return format!("{} % more", (100 * (part - of)).div_ceil(of));
    }
    format!("{} % less", 100 * (of - part) / of)
}

/// Formats two sizes in the unit of the larger one: `0.39 of 1.18 GiB`.
fn sizes(part: u64, of: &str, all: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let most = part.max(all);
    let (unit, shift) = match most >> 40 {
        0 => units.into_iter().find(|(_, shift)| most >> shift > 0).unwrap_or(("B", 0)),
        _ => ("TiB", 40),
    };
    if shift == 0 {
        return format!("{part} of {of}{all} B");
    }
    let scaled = |n: u64| n as f64 / (1u64 << shift) as f64;
    format!("{:.2} of {of}{:.2} {unit}", scaled(part), scaled(all))
}

impl fmt::Display for Savings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pfs, all) = (grouped(self.pfs_opens), grouped(self.opens));
        write!(f, "{}, ", self.bytes())?;
        // A job's descriptor of a large file leads to the PFS, and the agent opens the file, too.
        match self.pfs_opens > self.opens {
            true => write!(f, "{pfs} opens at the PFS for {all} of the job")?,
            false => write!(f, "{pfs} of {all} opens")?,
        }
        write!(f, "; readers waited {:.1} s", self.wait_s)?;
        if self.unknown_opens > 0 {
            write!(f, "; {} opens of files that are not in the index are not counted", grouped(self.unknown_opens))?;
        }
        Ok(())
    }
}

/// Formats a number with separators.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|g| std::str::from_utf8(g).ok()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::percent;

    fn map(of: &[(&str, u64)]) -> BTreeMap<String, u64> {
        of.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
    }

    /// All bytes came from copies of chunks, and the headline spoke of 0 of 6 opens.
    #[test]
    fn chunks_that_copies_served_count_as_saved() {
        let counters = map(&[("chunked", 6), ("chunk_bytes", 6 << 30), ("wait_us", 5_700_000)]);
        let s = Savings::of(&counters, &map(&[("source_bytes", 3 << 30)]), &[Opens { up_to_s: None, opens: 3 }]);
        assert_eq!(
            s.to_string(),
            "the PFS sent 3.00 of 6.00 GiB read (50 % less), 9 opens at the PFS for 6 of the job; readers waited 5.7 s"
        );
    }

    #[test]
    fn what_is_not_known_is_said() {
        let counters = map(&[("hits", 2), ("hit_bytes", 8 << 20), ("mapped_bytes", 4 << 20), ("unknown", 1234)]);
        let agent = map(&[("whole_large_bytes", 8 << 20), ("source_bytes", 3 << 20)]);
        let said = Savings::of(&counters, &agent, &[]).to_string();
        assert_eq!(
            said,
            "the PFS sent 3.00 of up to 12.00 MiB read (up to 75 % less), 0 of 2 opens; readers waited 0.0 s; 1,234 opens of \
             files that are not in the index are not counted"
        );
    }

    /// Bytes of a peer's copy were taken for bytes of the PFS.
    #[test]
    fn bytes_of_peers_are_not_those_of_the_pfs() {
        let counters = map(&[("hits", 1), ("hit_bytes", 100)]);
        let agent = map(&[("source_bytes", 10), ("bytes_copied", 100)]);
        assert_eq!(Savings::of(&counters, &agent, &[]).sent_bytes, 10);
    }

    /// 99.8 % stood beside 99.9 %.
    #[test]
    fn shares_are_rounded_down_and_never_claim_more() {
        assert_eq!(
            (percent(9989, 10_000), percent(10, 10), percent(0, 0)),
            ("99.8 %".into(), "100.0 %".into(), "0.0 %".into())
        );
        assert_eq!(percent(u64::MAX, u64::MAX), "100.0 %");
        assert_eq!(
            [percent_less(1, 1000), percent_less(0, 9), percent_less(3, 2), percent_less(1, 0)],
            ["99 % less".to_owned(), "100 % less".to_owned(), "50 % more".to_owned(), "nothing to compare".to_owned()]
        );
    }

    #[test]
    fn both_sizes_have_the_unit_of_the_larger() {
        assert_eq!(sizes(5, "", 900), "5 of 900 B");
        assert_eq!(sizes(512 << 20, "", 3 << 30), "0.50 of 3.00 GiB");
        assert_eq!(sizes(2 << 40, "", 1), "2.00 of 0.00 TiB");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
