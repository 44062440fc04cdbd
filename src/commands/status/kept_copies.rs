//! What earlier jobs have left in the tiers, when no agent is running.

use crate::args::ConfigArgs;
use crate::kept;
use crate::say::counted;
use bytesize::ByteSize;
use monarch_core::kept::KeptCopies;
use monarch_core::shown::ShowPath;
use monarch_core::tier::LAST_LOG;
use std::fmt::Write;

/// Returns the lines about the tiers, the roots of the copies, and the last log.
pub(super) fn text(config: &ConfigArgs, copies: &KeptCopies) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    for tier in &copies.tiers {
        let (sum, path) = (tier.sum(), tier.view.path());
        let _ = writeln!(
            out,
            "  tier     {} {}: {}, {}",
            tier.name,
            path.shown(),
            counted(sum.files, "copy"),
            ByteSize(sum.bytes)
        );
    }
    for root in kept::roots(config, copies) {
        let sum = copies.of_root(root);
        let _ = writeln!(out, "  root     {}: {}, {}", root.shown(), counted(sum.files, "copy"), ByteSize(sum.bytes));
    }
    for log in copies.tiers.iter().map(|t| t.view.path().join(LAST_LOG)).filter(|log| log.is_file()) {
        let _ = writeln!(out, "  log      {}", log.shown());
    }
    out
}
