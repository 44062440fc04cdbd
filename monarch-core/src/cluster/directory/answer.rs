//! The answer of a node to a request for a file.
//!
//! It serves what it has or is fetching. Otherwise the node that answers for the file fetches it,
//! or names the other holder; any other node names the one that answers. No node names the asker,
//! and none names another one for a request that has used up its hops.

use super::members::ME;
use super::{File, MAX_HOPS, Members, Residency};

/// What this node has of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// A complete copy.
    Resident,
    /// It is being fetched, from the PFS (`None`) or from another node.
    Coming(Option<u16>),
    /// Nothing, and there is room for it.
    Absent,
    /// Nothing, and no room.
    NoRoom,
    /// The file is not the version that the index names, as this node saw.
    Changed,
}

/// A request for a file, as it came in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// The node that asks; `None`: it is none of the job.
    pub from: Option<u16>,
    /// How often the request was redirected.
    pub hops: u8,
    /// The asker will keep a copy.
    pub keeps: bool,
    /// This node has more to send than it should.
    pub busy: bool,
}

/// An answer, with its HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 200: the copy, once it is complete.
    Serve,
    /// 200: this node reads the file from the PFS, once for all askers, and serves it.
    FetchAndServe,
    /// 307: ask that node.
    Redirect(u16),
    /// 409: the asker is to read the PFS and keep the copy; the next asker is sent to it.
    Delegate,
    /// 409: the asker is to read the PFS; no known node has room for the file.
    Refuse,
    /// 410: the file changed.
    Changed,
}

impl Residency {
    /// Answers a request. Notes which node will hold the file after it, unless the file has yet to
    /// come: then [`Residency::sent`] does.
    pub fn answer(&mut self, file: &File, view: &Members, asked: &Asked, local: Local) -> Answer {
        let mine = view.answerer(file.fp) == ME;
        if mine && asked.hops >= MAX_HOPS {
            // The request comes back from the holder that it was sent to, or its asker could not
            // reach that one.
            self.drop_second(file);
        }
        let answer = match local {
            Local::Changed => Answer::Changed,
            // Two nodes that wait for each other: the one that answers for the file has the other
            // read it, and waits for that.
            Local::Coming(Some(source)) if asked.from == Some(source) && view.answerer(file.fp) != source => {
                Answer::Delegate
            }
            Local::Resident if mine && asked.busy => {
                self.other(file, view, asked).map_or(Answer::Serve, Answer::Redirect)
            }
            Local::Resident | Local::Coming(_) => Answer::Serve,
            Local::Absent | Local::NoRoom if mine => self.as_first(file, view, asked, local),
            Local::Absent | Local::NoRoom => Self::as_other(file, view, asked, local),
        };
        match answer {
            Answer::Delegate => self.note(file, view, asked),
            Answer::Serve if local == Local::Resident => self.sent(file, view, asked),
            _ => {}
        }
        answer
    }

    /// Notes that a file that had yet to come when it was asked for is there and goes out. Not
    /// before: this node would take an asker that waits for it for a holder, and both would read
    /// the PFS.
    pub fn sent(&mut self, file: &File, view: &Members, asked: &Asked) {
        if asked.keeps {
            self.note(file, view, asked);
        }
    }

    /// Notes that the asker is going to hold the file, if this node answers for it.
    fn note(&mut self, file: &File, view: &Members, asked: &Asked) {
        if let Some(from) = asked.from.filter(|_| view.answerer(file.fp) == ME) {
            self.held(from, file);
        }
    }

    fn as_first(&self, file: &File, view: &Members, asked: &Asked, local: Local) -> Answer {
        match self.other(file, view, asked) {
            Some(holder) => Answer::Redirect(holder),
            None if local == Local::NoRoom => no_room(asked),
            None => Answer::FetchAndServe,
        }
    }

    fn as_other(file: &File, view: &Members, asked: &Asked, local: Local) -> Answer {
        let first = view.answerer(file.fp);
        if asked.from == Some(first) {
            // It took this node for the other holder; the copy is better where it belongs.
            Answer::Delegate
        } else if asked.hops < MAX_HOPS {
            Answer::Redirect(first)
        } else if local == Local::NoRoom {
            no_room(asked)
        } else {
            Answer::FetchAndServe
        }
    }

    /// The other holder, for an asker that can be sent there.
    fn other(&self, file: &File, view: &Members, asked: &Asked) -> Option<u16> {
        self.second(file, view).filter(|holder| asked.hops < MAX_HOPS && *holder != ME && asked.from != Some(*holder))
    }

    fn drop_second(&mut self, file: &File) {
        if let Some(holder) = self.known(file) {
            self.not_held(holder, file);
        }
    }
}

/// The asker has to read the file; if it keeps the copy, the next asker is sent to it.
fn no_room(asked: &Asked) -> Answer {
    if asked.keeps && asked.from.is_some() { Answer::Delegate } else { Answer::Refuse }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
