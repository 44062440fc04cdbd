//! What a handler is given, and what it gives.

use crate::http::head::Method;
use crate::http::range::ByteRange;
use crate::tag::Tag;
use rustix::fd::OwnedFd;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

/// An answer that is being made.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

/// What answers the requests of other nodes.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request of the node that has proven to be a member and calls itself `peer`. Until
    /// the answer is there, the server says every 100 ms that it is being worked on. Must not
    /// block its thread. If the peer goes away the future is dropped where it stands, so that
    /// work for others belongs in a task of its own.
    fn answer<'a>(&'a self, peer: &'a str, request: Request) -> Answering<'a>;
}

/// A request that is well-formed, of a peer that is authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do. An answer to HEAD is headed like one to GET; its body is not sent.
    pub method: Method,
    /// With what: a path without escapes, empty, `.` or `..` segments.
    pub path: String,
    /// What follows the question mark.
    pub query: Option<String>,
    /// Which bytes; only with GET.
    pub range: Option<ByteRange>,
    /// How many nodes have passed it on.
    pub hops: u8,
    /// What was sent with a POST, at most 16 MiB.
    pub body: Vec<u8>,
}

/// What is sent after an answer's head.
#[derive(Clone, Debug)]
pub enum Body {
    /// Nothing.
    None,
    /// These bytes.
    Bytes(Vec<u8>),
    /// A part of bytes that many answers share.
    Shared(Arc<Vec<u8>>, Range<usize>),
    /// A part of a file.
    File {
        /// The file, open for reading.
        fd: Arc<OwnedFd>,
        /// First byte.
        off: u64,
        /// Number of bytes. If the file has fewer, the connection is closed after those that it
        /// has.
        len: u64,
    },
    /// Bytes, and whole files behind them.
    Files {
        /// The bytes.
        front: Vec<u8>,
        /// Each open for reading, with its length. As a part of a file.
        files: Vec<(Arc<OwnedFd>, u64)>,
    },
}

impl Body {
    /// Bytes to send.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Shared(bytes, part) => bytes.get(part.clone()).map_or(0, |part| part.len() as u64),
            Self::File { len, .. } => *len,
            Self::Files { front, files } => front.len() as u64 + files.iter().map(|(_, len)| len).sum::<u64>(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if they are in memory; of several files those before them. They get the tag of
    /// their message.
    #[must_use]
    pub fn in_memory(&self) -> Option<&[u8]> {
        match self {
            Self::None | Self::File { .. } => None,
            Self::Bytes(bytes) => Some(bytes),
            Self::Shared(bytes, part) => Some(bytes.get(part.clone()).unwrap_or_default()),
            Self::Files { front, .. } => Some(front),
        }
    }
}

/// What is answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status from 200 to 599.
    pub status: u16,
    /// Headers besides those of the connection and the body's length. Values are printable ASCII:
    /// others end in a 500.
    pub headers: Vec<(&'static str, String)>,
    /// What follows.
    pub body: Body,
    /// The tag of a body that is a part of a file, as the asking node knows files; without one, its
    /// bytes are not authentic. Bytes in memory get the tag of their message.
    pub tag: Option<Tag>,
    /// Dropped once all of it has been sent.
    pub until_sent: UntilSent,
}

/// Something that is let go of with an answer.
#[derive(Clone, Default)]
pub struct UntilSent(Option<Arc<dyn std::any::Any + Send + Sync>>);

impl std::fmt::Debug for UntilSent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "UntilSent(something)" } else { "UntilSent" })
    }
}

impl Answer {
    /// A status and nothing else.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Body::None, tag: None, until_sent: UntilSent::default() }
    }

    /// The same answer, with something that lives until it has been sent.
    #[must_use]
    pub fn holding(mut self, what: impl Send + Sync + 'static) -> Self {
        self.until_sent = UntilSent(Some(Arc::new(what)));
        self
    }

    /// A status with a line that people may read.
    #[must_use]
    pub fn text(status: u16, line: &str) -> Self {
        Self { body: Body::Bytes(format!("{line}\n").into_bytes()), ..Self::status(status) }
    }

    /// All of these bytes.
    #[must_use]
    pub fn bytes(bytes: Vec<u8>) -> Self {
        Self { body: Body::Bytes(bytes), ..Self::status(200) }
    }

    /// What was asked of bytes that many answers share.
    #[must_use]
    pub fn shared(bytes: &Arc<Vec<u8>>, range: Option<ByteRange>) -> Self {
        Self::part(bytes.len() as u64, range, |part| {
            Body::Shared(Arc::clone(bytes), part.start as usize..part.end as usize)
        })
    }

    /// What was asked of a file whose `len` bytes begin at `off` of `fd`: 200, 206, or 416 for a
    /// range that it has nothing of.
    #[must_use]
    pub fn file(fd: Arc<OwnedFd>, off: u64, len: u64, range: Option<ByteRange>) -> Self {
        Self::part(len, range, |part| Body::File {
            fd,
            off: off.saturating_add(part.start),
            len: part.end - part.start,
        })
    }

    fn part(len: u64, range: Option<ByteRange>, body: impl FnOnce(Range<u64>) -> Body) -> Self {
        let Some(range) = range else { return Self { body: body(0..len), ..Self::status(200) } };
        match range.resolve(len) {
            Some(part) => {
                let answer = Self::status(206).header("Content-Range", content_range(&part, len));
                Self { body: body(part), ..answer }
            }
            None => Self::status(416).header("Content-Range", format!("bytes */{len}")),
        }
    }

    /// The same with one more header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }
}

fn content_range(part: &Range<u64>, len: u64) -> String {
    format!("bytes {}-{}/{len}", part.start, part.end - 1)
}
