//! Why a server turns a request down, and what it says then.

/// Why a request is turned down. The connection is closed after each of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It never proved that it knows the secret.
    Unauthenticated,
    /// Its proof is wrong: another secret, or meant for another node.
    BadProof,
    /// Its proof answers a challenge that is not this connection's, or was answered already.
    Replayed,
    /// It answered the challenge too late.
    Expired,
    /// It knows the secret, and is called as no node of the job.
    NoMember,
    /// It was changed on its way, or is not the next one of its connection.
    Forged,
    /// A plain request, and this node takes TLS only.
    Unencrypted,
    /// TLS, and this node does not speak it.
    Encrypted,
    /// TLS without a connection in the end: no protocol or version in common.
    Handshake,
    /// Not HTTP, or with headers that contradict each other.
    Malformed,
    /// A path or query outside of what is allowed.
    Path,
    /// Not GET, HEAD or POST.
    Method,
    /// Not HTTP/1.1.
    Version,
    /// A head that is longer than 16 KiB.
    HeadTooLarge,
    /// A body that is longer than 16 MiB.
    BodyTooLarge,
    /// A POST that does not say how long its body is.
    NoLength,
    /// A body in another coding, such as chunked.
    Coding,
    /// A range of bytes that is malformed, or several.
    Range,
    /// More connections than the server takes.
    Full,
    /// A head or body that does not come to its end.
    Slow,
}

impl Refusal {
    /// All of them, in the order in which they are counted.
    pub const ALL: [Self; 20] = [
        Self::Unauthenticated,
        Self::BadProof,
        Self::Replayed,
        Self::Expired,
        Self::NoMember,
        Self::Forged,
        Self::Unencrypted,
        Self::Encrypted,
        Self::Handshake,
        Self::Malformed,
        Self::Path,
        Self::Method,
        Self::Version,
        Self::HeadTooLarge,
        Self::BodyTooLarge,
        Self::NoLength,
        Self::Coding,
        Self::Range,
        Self::Full,
        Self::Slow,
    ];

    /// The status that says it.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Unauthenticated | Self::BadProof | Self::Replayed | Self::Expired | Self::Forged => 401,
            Self::Unencrypted | Self::Encrypted => 426,
            Self::Malformed | Self::Path | Self::Handshake => 400,
            Self::NoMember => 403,
            Self::Method => 405,
            Self::Version => 505,
            Self::HeadTooLarge => 431,
            Self::BodyTooLarge => 413,
            Self::NoLength => 411,
            Self::Coding => 501,
            Self::Range => 416,
            Self::Full => 503,
            Self::Slow => 408,
        }
    }

    /// Sentence for the client and the log: what is wrong and what would be right.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Unauthenticated => "not authenticated: this port is for agents that know the job's secret",
            Self::BadProof => {
                "wrong proof: all nodes of a job need the same cluster secret, and the name they know each other by"
            }
            Self::Replayed => {
                "proof for a challenge that is not open on this connection: ask for one and answer it once"
            }
            Self::Expired => "proof came too late: answer the challenge within 10 s",
            Self::NoMember => "not a node of this job: all nodes need the same list of nodes",
            Self::Forged => "not authentic: a request that was changed on its way, or sent before",
            Self::Unencrypted => {
                "not encrypted: this node has cluster.encryption: tls and the sender none; set it alike on all nodes"
            }
            Self::Encrypted => {
                "encrypted: this node has cluster.encryption: none and the sender tls; set it alike on all nodes"
            }
            Self::Handshake => {
                "TLS, but no TLS 1.3 of an agent of this version: use one version of Monarch on all nodes of a job"
            }
            Self::Malformed => "not a well-formed HTTP/1.1 request",
            Self::Path => {
                "path not allowed: plain letters, digits and . _ ~ - / @ : + , = with no empty, . or .. segment"
            }
            Self::Method => "method not allowed: GET, HEAD and POST are",
            Self::Version => "only HTTP/1.1 is spoken here",
            Self::HeadTooLarge => "request head longer than 16 KiB",
            Self::BodyTooLarge => "request body longer than 16 MiB: send it in parts",
            Self::NoLength => "a POST needs a Content-Length",
            Self::Coding => "transfer codings are not supported: send a Content-Length and the plain body",
            Self::Range => "range not understood: one range of bytes at a time",
            Self::Full => "all connections are taken: try again later, or ask another node",
            Self::Slow => "the request did not come to its end in time",
        }
    }

    /// The label it is counted under.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::BadProof => "bad_proof",
            Self::Replayed => "replayed",
            Self::Expired => "expired",
            Self::NoMember => "no_member",
            Self::Forged => "forged",
            Self::Unencrypted => "unencrypted",
            Self::Encrypted => "encrypted",
            Self::Handshake => "handshake",
            Self::Malformed => "malformed",
            Self::Path => "path",
            Self::Method => "method",
            Self::Version => "version",
            Self::HeadTooLarge => "head_too_large",
            Self::BodyTooLarge => "body_too_large",
            Self::NoLength => "no_length",
            Self::Coding => "coding",
            Self::Range => "range",
            Self::Full => "full",
            Self::Slow => "slow",
        }
    }
}
