//! Turning entries of the index to Bypass: the kernel answers for them from then on.

use core::sync::atomic::Ordering;
use monarch_abi::demand;
use monarch_abi::resolve::{Found, Parent};
use monarch_guest::ctx::Ctx;

/// Turns one entry to Bypass, wakes waiting readers and notifies the agent.
pub fn bypass(ctx: &Ctx, f: &Found<'static>) {
    demand::bypass(ctx.map, f);
}

/// Bypasses a whole subtree: directories that are moved or covered.
pub(super) fn bypass_subtree(ctx: &Ctx, f: &Found<'static>) {
    if let Some(d) = f.segment.index.dir(f.entry.record)
        && !ctx.map.bypass_range(f.number as u32, d.id, d.end)
    {
        f.segment.state.header.bypassed.store(1, Ordering::Release);
    }
}

pub(super) fn bypass_parent(ctx: &Ctx, p: &Parent<'static>, subtree: bool) {
    bypass(ctx, &p.dir);
    if let Some(entry) = &p.entry {
        bypass(ctx, entry);
        if subtree && entry.entry.record.is_dir() {
            bypass_subtree(ctx, entry);
        }
    }
}
