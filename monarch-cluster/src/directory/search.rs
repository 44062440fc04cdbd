//! The way of a node that needs a file and has no copy: to the node that answers for it, or to the
//! PFS.
//!
//! [`Residency::route`] is one decision; [`Search`] is the loop around it, with its bounds: a
//! reader asks at most [`MAX_ASKS`] times and waits for at most [`MAX_FAILED`] nodes that do not
//! answer, then the PFS serves it. A redirect to a node that did not answer means that the
//! redirecting node does not know yet; a redirect to one that was asked before means that views
//! differ or a holder lost its copy. Either way the redirecting node is asked once more with all
//! hops used up, so that it does the work itself: readers that lost the same owner meet at the next
//! in order, and the file is still read once.

use super::members::ME;
use super::residency::{Residency, Route};
use super::{File, MAX_HOPS, Members};

/// Most requests for one read.
pub const MAX_ASKS: u8 = 8;

/// Most nodes whose silence one read waits for: the one that answers for the file, and the next in
/// its order.
pub const MAX_FAILED: usize = 2;

/// One read of a file that is not here.
#[derive(Clone, Debug, Default)]
pub struct Search {
    tried: Vec<u16>,
    asked: Vec<u16>,
    sent_to: Option<u16>,
    hops: u8,
    over: bool,
}

impl Search {
    /// Nothing was asked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next step; a [`Route::Ask`] counts as made. `waits` are the nodes that this node has
    /// promised the file to, which it does not have yet: to ask them would be to wait for itself.
    pub fn next(&mut self, file: &File, known: &Residency, view: &Members, waits: impl Fn(u16) -> bool) -> Route {
        if self.over || self.asked.len() >= usize::from(MAX_ASKS) || self.tried.len() >= MAX_FAILED {
            return Route::Pfs;
        }
        let route = match self.sent_to.take() {
            Some(node) => Route::Ask(node),
            None => known.route(file, view, &self.tried, 0),
        };
        match route {
            Route::Ask(node) if waits(node) => Route::Pfs,
            Route::Ask(node) => {
                self.asked.push(node);
                route
            }
            Route::Pfs => route,
        }
    }

    /// The hop count that the next request carries.
    pub fn hops(&self) -> u8 {
        self.hops
    }

    /// Notes that `by` said to ask `to` (307).
    pub fn redirected(&mut self, by: u16, to: u16) {
        let usable = to != ME && !self.tried.contains(&to);
        self.hops = if usable && !self.asked.contains(&to) { (self.hops + 1).min(MAX_HOPS) } else { MAX_HOPS };
        self.sent_to = Some(if usable { to } else { by });
    }

    /// Notes that `node` did not answer in time, or answered with less than the file.
    pub fn failed(&mut self, node: u16) {
        self.tried.push(node);
    }

    /// Notes that the node that was asked said to read the PFS (409, 410): the end of the search.
    pub fn refused(&mut self) {
        self.over = true;
    }

    /// Nodes that did not answer.
    pub fn tried(&self) -> &[u16] {
        &self.tried
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
