//! Heads of requests and responses, from bytes that may be anything.
//!
//! `httparse` splits them into lines; what is here decides which of them mean something and refuses
//! those that could mean two things: a header that frames the message twice, a body without a
//! length, a coding that is not spoken.

use super::path;
use super::range::ByteRange;
use super::refusal::Refusal;
use crate::tag::Tag;
use httparse::{Error, Header, Status};

/// Longest head.
pub const HEAD_MAX: usize = 16 * 1024;
/// Longest body of a request.
pub const BODY_MAX: u64 = 16 << 20;
/// Most headers in a head.
const MAX_HEADERS: usize = 64;

/// What may be asked for with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Its bytes.
    Get,
    /// What its bytes would be headed with.
    Head,
    /// To take a body.
    Post,
}

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// What to do.
    pub method: Method,
    /// With what: see [`path::split`].
    pub path: String,
    /// What follows the question mark.
    pub query: Option<String>,
    /// Which of its bytes; only with GET.
    pub range: Option<ByteRange>,
    /// How many nodes have passed the request on.
    pub hops: u8,
    /// The value of `Authorization`.
    pub authorization: Option<String>,
    /// Bytes of body that follow.
    pub body: u64,
    /// The tag of the body.
    pub tag: Option<Tag>,
    /// Whether the connection is to be closed after the answer.
    pub close: bool,
}

/// Reads a request's head from the front of `bytes`: it and its length, or `None` if its end has
/// not come yet.
///
/// # Errors
/// Why it cannot be answered.
pub fn request(bytes: &[u8]) -> Result<Option<(RequestHead, usize)>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut raw = httparse::Request::new(&mut headers);
    let len = match raw.parse(bytes) {
        Ok(Status::Complete(len)) if len <= HEAD_MAX => len,
        Ok(Status::Partial) if bytes.len() < HEAD_MAX => return Ok(None),
        Ok(_) | Err(Error::TooManyHeaders) => return Err(Refusal::HeadTooLarge),
        Err(Error::Version) => return Err(Refusal::Version),
        Err(_) => return Err(Refusal::Malformed),
    };
    if raw.version != Some(1) {
        return Err(Refusal::Version);
    }
    let method = match raw.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        Some("POST") => Method::Post,
        _ => return Err(Refusal::Method),
    };
    let (path, query) = raw.path.and_then(path::split).ok_or(Refusal::Path)?;
    let mut head = RequestHead {
        method,
        path: path.to_owned(),
        query: query.map(str::to_owned),
        range: None,
        hops: 0,
        authorization: None,
        body: 0,
        tag: None,
        close: false,
    };
    head.take(raw.headers)?;
    Ok(Some((head, len)))
}

impl RequestHead {
    fn take(&mut self, headers: &[Header<'_>]) -> Result<(), Refusal> {
        if only(headers, "Transfer-Encoding")?.is_some() {
            return Err(Refusal::Coding);
        }
        only(headers, "Host")?.ok_or(Refusal::Malformed)?;
        self.body = match (self.method, only(headers, "Content-Length")?) {
            (Method::Post, None) => return Err(Refusal::NoLength),
            (_, None) => 0,
            (_, Some(value)) => decimal(value).ok_or(Refusal::Malformed)?,
        };
        if self.method != Method::Post && self.body > 0 {
            return Err(Refusal::Malformed);
        }
        if self.body > BODY_MAX {
            return Err(Refusal::BodyTooLarge);
        }
        if let (Method::Get, Some(value)) = (self.method, only(headers, "Range")?) {
            self.range = ByteRange::parse(value).map_err(|_| Refusal::Range)?;
        }
        if let Some(value) = only(headers, "Monarch-Hops")? {
            self.hops = decimal(value).and_then(|hops| u8::try_from(hops).ok()).ok_or(Refusal::Malformed)?;
        }
        self.authorization = only(headers, "Authorization")?.map(str::to_owned);
        self.tag = only(headers, "Monarch-Tag")?.map(str::parse).transpose().map_err(|_| Refusal::Malformed)?;
        self.close = closes(headers);
        Ok(())
    }
}

/// The head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// What became of the request.
    pub status: u16,
    /// Bytes of body that follow, or would follow an answer to GET; 0 if it does not say.
    pub len: u64,
    /// Whether the server closes the connection after it.
    pub close: bool,
    /// All headers that are text, names as they came.
    pub headers: Vec<(String, String)>,
}

/// A response that cannot be understood, with what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadResponse(pub &'static str);

/// Reads a response's head from the front of `bytes`: it and its length, or `None` if its end has
/// not come yet.
///
/// # Errors
/// What is wrong with it.
pub fn response(bytes: &[u8]) -> Result<Option<(ResponseHead, usize)>, BadResponse> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut raw = httparse::Response::new(&mut headers);
    let len = match raw.parse(bytes) {
        Ok(Status::Complete(len)) if len <= HEAD_MAX => len,
        Ok(Status::Partial) if bytes.len() < HEAD_MAX => return Ok(None),
        Ok(_) | Err(Error::TooManyHeaders) => return Err(BadResponse("its head is longer than 16 KiB")),
        Err(_) => return Err(BadResponse("it is not HTTP/1.1")),
    };
    let status = raw.code.filter(|code| (100..600).contains(code)).ok_or(BadResponse("it has no status"))?;
    let twice = |_| BadResponse("it frames its body twice");
    if only(raw.headers, "Transfer-Encoding").map_err(twice)?.is_some() {
        return Err(BadResponse("its body is in a transfer coding"));
    }
    let body = match only(raw.headers, "Content-Length").map_err(twice)? {
        Some(value) => decimal(value).ok_or(BadResponse("its Content-Length is not a number"))?,
        None if status < 200 || status == 204 || status == 304 => 0,
        None => return Err(BadResponse("it has no Content-Length")),
    };
    let text = |header: &Header<'_>| Some((header.name.to_owned(), std::str::from_utf8(header.value).ok()?.to_owned()));
    let close = closes(raw.headers) || raw.version != Some(1);
    Ok(Some((ResponseHead { status, len: body, close, headers: raw.headers.iter().filter_map(text).collect() }, len)))
}

impl ResponseHead {
    /// The value of a header, whatever the case of its name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// The value of a header that may be there at most once.
fn only<'a>(headers: &[Header<'a>], name: &str) -> Result<Option<&'a str>, Refusal> {
    let mut named = headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
    let Some(header) = named.next() else { return Ok(None) };
    if named.next().is_some() {
        return Err(Refusal::Malformed);
    }
    std::str::from_utf8(header.value).map(|value| Some(value.trim())).map_err(|_| Refusal::Malformed)
}

fn closes(headers: &[Header<'_>]) -> bool {
    let named = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("Connection"));
    named.into_iter().any(|header| {
        header.value.split(|byte| *byte == b',').any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
    })
}

/// Digits alone: `str::parse` would take a plus sign.
fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
#[path = "tests/head.rs"]
mod tests;
