//! The text of heads, as the server sends them.

use super::answer::Answer;
use crate::http::refusal::Refusal;
use crate::tag::Tag;
use std::fmt::Write as _;

const CLOSE: &str = "Connection: close\r\n";

/// The scheme without a challenge, for clients that had theirs.
pub(super) const WHICH: &str = "Monarch";

/// A refusal as it is sent, with a line that people may read; `which` goes with those for lack of a
/// proof.
pub(super) fn refusal(refusal: Refusal, which: &str) -> Vec<u8> {
    let (status, reason) = (refusal.status(), refusal.reason());
    let header = match status {
        426 if refusal == Refusal::Unencrypted => "Upgrade: TLS/1.3\r\n".to_owned(),
        426 => "Upgrade: HTTP/1.1\r\n".to_owned(),
        401 => format!("WWW-Authenticate: {which}\r\n"),
        405 => "Allow: GET, HEAD, POST\r\n".to_owned(),
        _ => String::new(),
    };
    let len = reason.len() + 1;
    format!("HTTP/1.1 {status} {}\r\nContent-Length: {len}\r\n{header}{CLOSE}\r\n{reason}\n", phrase(status))
        .into_bytes()
}

/// Says that an answer is being made; to be sealed.
pub(super) const BUSY: &[u8] = b"HTTP/1.1 102 Processing\r\n";

/// The head of an answer, to be sealed. `tag` is that of its body.
pub(super) fn answer(answer: &Answer, tag: Option<Tag>, close: bool) -> Vec<u8> {
    let mut text = String::with_capacity(256);
    // Writing into a String cannot fail.
    let _ = write!(text, "HTTP/1.1 {} {}\r\n", answer.status, phrase(answer.status));
    if answer.status != 204 {
        let _ = write!(text, "Content-Length: {}\r\n", answer.body.len());
    }
    for (name, value) in &answer.headers {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    if let Some(tag) = tag {
        let _ = write!(text, "Monarch-Tag: {tag}\r\n");
    }
    if close {
        text.push_str(CLOSE);
    }
    text.into_bytes()
}

/// Whether an answer can be put into a head: a value with a line break in it would be read as
/// further headers.
pub(super) fn is_sound(answer: &Answer) -> bool {
    let printable = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    (200..600).contains(&answer.status)
        && answer.headers.iter().all(|(name, value)| printable(name) && printable(value))
}

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        421 => "Misdirected Request",
        426 => "Upgrade Required",
        416 => "Range Not Satisfiable",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Other",
    }
}

/// Asks for a proof; the connection stays.
pub(super) fn challenge(which: &str) -> String {
    format!("HTTP/1.1 401 {}\r\nContent-Length: 0\r\nWWW-Authenticate: {which}\r\n\r\n", phrase(401))
}
