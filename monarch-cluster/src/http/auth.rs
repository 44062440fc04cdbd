//! How two nodes prove to each other that they know the job's secret, without sending anything that
//! could be used again.
//!
//! A connection starts unauthenticated. The server answers its first request with 401 and a
//! challenge, 16 random bytes that are good for this connection, once, for 10 s:
//!
//! ```text
//! WWW-Authenticate: Monarch nonce="<32 hex digits>"
//! ```
//!
//! The client asks again and adds a challenge of its own and a proof:
//!
//! ```text
//! Authorization: Monarch node="<its name>", nonce="<the server's>", cnonce="<its own>", mac="<64 hex digits>"
//! ```
//!
//! The answer to that carries the server's proof in `Monarch-Proof`; the client hangs up if it is
//! not there or wrong. From then on the connection is authenticated and nothing is added to its
//! requests. Both proofs are HMAC-SHA256 under the 32-byte key over six fields, each as a netstring
//! (`<length>:<bytes>,`), so that no two lists of fields look the same: `monarch-client` or
//! `monarch-server`, the protocol's version (`1`), nonce, cnonce (both in hex), the client's name,
//! the server's name. The names keep a proof that was meant for one server from being passed on to
//! another.
//!
//! What this does not do: nothing is encrypted, and an attacker who can rewrite packets between the
//! nodes can take over a connection after the proofs. It keeps out other users and jobs on the
//! network.
//!
//! By hand, from bash (`$key` in hex; `$me` any name, `$it` the server's):
//!
//! ```text
//! ns() { for f; do printf '%d:%s,' ${#f} "$f"; done; }
//! hmac() { openssl dgst -sha256 -mac HMAC -macopt hexkey:$key -r | cut -d' ' -f1; }
//! exec 3<>/dev/tcp/$host/$port
//! printf 'HEAD / HTTP/1.1\r\nHost: x\r\n\r\n' >&3
//! while IFS= read -r line <&3 && [ "$line" != $'\r' ]; do case $line in *nonce=*) n=${line#*\"}; n=${n%%\"*};; esac; done
//! c=$(openssl rand -hex 16); mac=$(ns monarch-client 1 $n $c $me $it | hmac)
//! printf 'GET /path HTTP/1.1\r\nHost: x\r\nConnection: close\r\n' >&3
//! printf 'Authorization: Monarch node="%s", nonce="%s", cnonce="%s", mac="%s"\r\n\r\n' $me $n $c $mac >&3
//! cat <&3
//! ```

use super::hex;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::io;
use subtle::ConstantTimeEq;

/// Version of the protocol; part of what is proven, so that nodes of different versions refuse each
/// other here.
const VERSION: &str = "1";
/// Longest name of a node.
const MAX_NAME_BYTES: usize = 255;

/// The key that all nodes of a job share.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// The key that `bytes` are.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A challenge: random, used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce([u8; 16]);

impl Nonce {
    /// A new one, from the kernel.
    ///
    /// # Errors
    /// What the kernel said, or that it gave too few bytes.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        if got == bytes.len() { Ok(Self(bytes)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn parse(text: &str) -> Option<Self> {
        hex::decode(text).map(Self)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

/// Whose proof it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The node that asks.
    Client,
    /// The node that answers.
    Server,
}

/// What both sides of a connection know when they prove themselves.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    /// The server's challenge.
    pub nonce: Nonce,
    /// The client's.
    pub cnonce: Nonce,
    /// Name of the node that asks.
    pub client: &'a str,
    /// Name of the node that answers.
    pub server: &'a str,
}

impl Exchange<'_> {
    /// The proof of one side.
    #[must_use]
    pub fn proof(&self, key: &Key, side: Side) -> [u8; 32] {
        let label = match side {
            Side::Client => "monarch-client",
            Side::Server => "monarch-server",
        };
        let fields = [label, VERSION, &self.nonce.to_string(), &self.cnonce.to_string(), self.client, self.server];
        mac(key, &fields)
    }

    /// Whether `given` is the proof of that side; takes the same time whatever is wrong with it.
    #[must_use]
    pub fn proves(&self, key: &Key, side: Side, given: &[u8; 32]) -> bool {
        self.proof(key, side).ct_eq(given).into()
    }
}

fn mac(key: &Key, fields: &[&str]) -> [u8; 32] {
    // A key of exactly one size that HMAC takes: the array's own type picks `new`, which cannot
    // fail.
    let mut padded = [0; 64];
    padded[..32].copy_from_slice(&key.0);
    let mut mac = Hmac::<Sha256>::new(&padded.into());
    for field in fields {
        mac.update(format!("{}:{field},", field.len()).as_bytes());
    }
    mac.finalize().into_bytes().into()
}

/// The value of `WWW-Authenticate` for a challenge.
#[must_use]
pub fn challenge(nonce: Nonce) -> String {
    format!("Monarch nonce=\"{nonce}\"")
}

/// The challenge in a value of `WWW-Authenticate`.
#[must_use]
pub fn parse_challenge(value: &str) -> Option<Nonce> {
    let [nonce] = params(value, ["nonce"])?;
    Nonce::parse(nonce)
}

/// The value of `Monarch-Proof`.
#[must_use]
pub fn proof_value(proof: &[u8; 32]) -> String {
    hex::encode(proof)
}

/// The proof in a value of `Monarch-Proof`.
#[must_use]
pub fn parse_proof(value: &str) -> Option<[u8; 32]> {
    hex::decode(value)
}

/// What a client says in `Authorization`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The client's name.
    pub node: String,
    /// The server's challenge.
    pub nonce: Nonce,
    /// The client's.
    pub cnonce: Nonce,
    /// The client's proof.
    pub mac: [u8; 32],
}

impl Credentials {
    /// Reads a value of `Authorization`: each field once, in any order.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        let [node, nonce, cnonce, mac] = params(value, ["node", "nonce", "cnonce", "mac"])?;
        if !is_name(node) {
            return None;
        }
        let (nonce, cnonce) = (Nonce::parse(nonce)?, Nonce::parse(cnonce)?);
        Some(Self { node: node.to_owned(), nonce, cnonce, mac: hex::decode(mac)? })
    }
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, nonce, cnonce, mac } = self;
        let mac = hex::encode(mac);
        write!(f, "Monarch node=\"{node}\", nonce=\"{nonce}\", cnonce=\"{cnonce}\", mac=\"{mac}\"")
    }
}

/// Whether a node may be called so: 1 to 255 letters, digits and `. - _ : [ ]`, which names and
/// addresses are made of.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(fits)
}

/// The quoted values of exactly these parameters after the scheme `Monarch`. No value that is taken
/// has a comma or a quote in it, so that splitting at commas is enough.
fn params<'a, const N: usize>(value: &'a str, names: [&str; N]) -> Option<[&'a str; N]> {
    let (scheme, rest) = value.trim().split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("monarch") {
        return None;
    }
    let mut found = [None; N];
    for part in rest.split(',') {
        let (name, quoted) = part.trim().split_once('=')?;
        let at = names.iter().position(|known| known.eq_ignore_ascii_case(name))?;
        let text = quoted.strip_prefix('"')?.strip_suffix('"')?;
        if found[at].replace(text).is_some() {
            return None;
        }
    }
    let mut out = [""; N];
    for (to, from) in out.iter_mut().zip(found) {
        *to = from?;
    }
    Some(out)
}

#[cfg(test)]
#[path = "tests/auth.rs"]
mod tests;
