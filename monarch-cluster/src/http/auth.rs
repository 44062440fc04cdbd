//! How two nodes prove to each other that they know the job's secret, without sending anything that
//! could be used again.
//!
//! A connection starts unauthenticated. The server answers its first request with 401, a challenge,
//! 16 random bytes that are good for this connection, once, for 10 s, and its version:
//!
//! ```text
//! WWW-Authenticate: Monarch nonce="<32 hex digits>", version="4"
//! ```
//!
//! The client asks again and adds a challenge of its own and a proof:
//!
//! ```text
//! Authorization: Monarch node="<its name>", nonce="<the server's>", cnonce="<its own>", mac="<64 hex digits>"
//! ```
//!
//! That request and all that follows on the connection, in both directions, is authentic by codes
//! under keys that both sides derive from the exchange ([`session`](super::session)): so the
//! server's first answer proves that it knows the secret, and the client hangs up otherwise. The
//! proof and these keys are HMAC-SHA256 under the 32-byte key over fields, each as a netstring
//! (`<length>:<bytes>,`), so that no two lists of fields look the same: `monarch-client` (the keys:
//! `monarch-client heads`, `monarch-client bodies`, and the same of `monarch-server`), the
//! protocol's version (`4`), nonce, cnonce (both in hex), the client's name, the server's name. The
//! names keep a proof that was meant for one server from being passed on to another.
//!
//! What this does not do: nothing is encrypted. Where it is ([`tls`](super::tls)), all of this goes
//! on inside.
//!
//! By hand, from bash (`$key` in hex; `$me` any name, `$it` the server's):
//!
//! ```text
//! ns() { for f; do printf '%d:%s,' ${#f} "$f"; done; }
//! hmac() { openssl dgst -sha256 -mac HMAC -macopt hexkey:$1 -r | cut -d' ' -f1; }
//! exec 3<>/dev/tcp/$host/$port
//! printf 'HEAD / HTTP/1.1\r\nHost: x\r\n\r\n' >&3
//! while IFS= read -r line <&3 && [ "$line" != $'\r' ]; do case $line in *nonce=*) n=${line#*\"}; n=${n%%\"*};; esac; done
//! c=$(openssl rand -hex 16); mac=$(ns monarch-client 4 $n $c $me $it | hmac $key)
//! heads=$(ns 'monarch-client heads' 4 $n $c $me $it | hmac $key)
//! head=$(printf 'GET /path HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Monarch node="%s", ' $me)
//! head+=$(printf 'nonce="%s", cnonce="%s", mac="%s"\r' $n $c $mac)
//! code=$({ head -c 8 /dev/zero; printf '%s\n' "$head"; } | hmac $heads | head -c 32)
//! printf '%s\nMonarch-Mac: %s\r\n\r\n' "$head" $code >&3; cat <&3
//! ```

use crate::hex;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::io;
use subtle::ConstantTimeEq;

/// Version of the protocol. A client goes by that of the challenge; it is part of what is proven as
/// well, so that an attacker on the path cannot change it.
pub(super) const VERSION: &str = "4";
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

/// One of the two ends of a connection.
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
    /// The client's proof.
    #[must_use]
    pub fn proof(&self, key: &Key) -> [u8; 32] {
        self.code(key, "monarch-client")
    }

    /// Whether `given` is the client's proof; takes the same time whatever is wrong with it.
    #[must_use]
    pub fn proves(&self, key: &Key, given: &[u8; 32]) -> bool {
        self.proof(key).ct_eq(given).into()
    }

    /// A key for one purpose of what `sender` sends on this connection.
    #[must_use]
    pub fn session_key(&self, key: &Key, sender: Side, purpose: &str) -> [u8; 32] {
        let sender = match sender {
            Side::Client => "client",
            Side::Server => "server",
        };
        self.code(key, &format!("monarch-{sender} {purpose}"))
    }

    fn code(&self, key: &Key, label: &str) -> [u8; 32] {
        let fields = [label, VERSION, &self.nonce.to_string(), &self.cnonce.to_string(), self.client, self.server];
        mac(key, &fields)
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
    format!("Monarch nonce=\"{nonce}\", version=\"{VERSION}\"")
}

/// The challenge in a value of `WWW-Authenticate`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_challenge(value: &str) -> Result<Nonce, String> {
    // (Version 1 did not say so.)
    let said = params(value, ["nonce", "version"]).or_else(|| params(value, ["nonce"]).map(|[nonce]| [nonce, "1"]));
    let none = || "it asks for no proof that an agent has".to_owned();
    let [nonce, version] = said.ok_or_else(none)?;
    if version != VERSION {
        return Err(format!("it speaks version {version:.9} of the nodes' protocol, and this node version {VERSION}"));
    }
    Nonce::parse(nonce).ok_or_else(none)
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
