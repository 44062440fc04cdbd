//! A request for a file, and the answer to it.

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
