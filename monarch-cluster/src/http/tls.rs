//! Keys and settings of TLS between nodes.
//!
//! All nodes of a job have the same Ed25519 key, made by HKDF-SHA256 from the job's secret. There
//! are no certificates: each end sends the public key as it is (RFC 7250), and each end takes
//! that one key and no other. So an end that finishes the handshake knows the secret. Only TLS 1.3
//! is spoken, without tickets, early data or a name of the server. The one protocol that is offered
//! ([`ALPN`]) has the version of the nodes' protocol, so that versions do not mix.
//!
//! Which node is at the other end is not said here: [`auth`](super::auth) follows inside.

use super::error::WireError;
use hkdf::Hkdf;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use sha2::Sha256;
use std::fmt;
use std::sync::Arc;

/// The protocol inside: HTTP/1.1 with the version of [`auth`](super::auth).
pub const ALPN: &[u8] = b"monarch/4";
/// First byte of a connection that begins with TLS: a record of the handshake. No request begins
/// with it.
pub(super) const HELLO_BYTE: u8 = 0x16;
/// What the private key is derived for.
const KEY_PURPOSE: &[u8] = b"monarch tls ed25519";
/// What comes before the seed of an Ed25519 key in PKCS #8 (RFC 8410).
const PKCS8_PREFIX: [u8; 16] = *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";

/// How the nodes of one job encrypt what they send to each other. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Tls {
    /// Both ends for the job whose secret `key`, 32 bytes, was derived from.
    ///
    /// # Errors
    /// [`WireError::Encrypt`] if the library does not take the key.
    pub fn new(key: &[u8; 32]) -> Result<Self, WireError> {
        Self::speaking(key, ALPN)
    }

    /// The same with another protocol inside.
    pub(super) fn speaking(key: &[u8; 32], protocol: &[u8]) -> Result<Self, WireError> {
        Self::build(key, protocol).map_err(|source| WireError::Encrypt { source })
    }

    fn build(key: &[u8; 32], protocol: &[u8]) -> Result<Self, Error> {
        let provider = Arc::new(provider());
        let own = Arc::new(own_key(key, &provider)?);
        let pinned = Arc::new(Pinned {
            key: own.end_entity_cert()?.clone().into_owned(),
            algorithms: provider.signature_verification_algorithms,
        });
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(pinned.clone())
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own.clone())));
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        client.alpn_protocols = vec![protocol.to_vec()];
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(pinned)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![protocol.to_vec()];
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }

    /// How a node asks others, for tools that measure them.
    #[must_use]
    pub fn client_config(&self) -> &Arc<ClientConfig> {
        &self.client
    }

    /// The name that TLS wants of a server; it is not sent and not compared.
    pub(super) fn no_name() -> ServerName<'static> {
        ServerName::IpAddress(std::net::IpAddr::from(std::net::Ipv4Addr::UNSPECIFIED).into())
    }
}

/// One key exchange, and AES-128 before the cipher of processors without AES.
fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![ring::kx_group::X25519],
        ..ring::default_provider()
    }
}

/// The key of all nodes.
fn own_key(key: &[u8; 32], provider: &CryptoProvider) -> Result<CertifiedKey, Error> {
    let mut seed = [0; 32];
    // Only a key of more than 255 blocks is an error.
    Hkdf::<Sha256>::new(None, key)
        .expand(KEY_PURPOSE, &mut seed)
        .map_err(|_| Error::General("no key of this length".to_owned()))?;
    let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from([&PKCS8_PREFIX[..], &seed].concat()));
    let key = provider.key_provider.load_private_key(der)?;
    let public = key.public_key().ok_or_else(|| Error::General("a key without its public half".to_owned()))?;
    let public = CertificateDer::from(public.as_ref().to_vec());
    Ok(CertifiedKey::new(vec![public], key))
}

/// Takes the job's public key and no other.
#[derive(Debug)]
struct Pinned {
    key: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    fn compare(&self, given: &CertificateDer<'_>) -> Result<(), Error> {
        let is_it = given.as_ref() == self.key.as_ref();
        if is_it { Ok(()) } else { Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)) }
    }

    fn signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }
}

fn no_tls12() -> Error {
    Error::General("TLS 1.2 is not spoken".to_owned())
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.compare(key).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.compare(key).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// What an error of TLS says about the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// This end does not take the other one's key.
    ItsKey,
    /// The other end does not take this one's key.
    MyKey,
    /// They have no version of the protocol in common, or it speaks no TLS.
    Version,
    /// What came was changed on its way, or is no record of this connection.
    Forged,
}

impl Fault {
    /// What `error` says; before the end of the handshake nothing can be forged.
    pub(super) fn of(error: &Error, handshaking: bool) -> Self {
        use AlertDescription::{
            AccessDenied, BadCertificate, BadRecordMac, CertificateRequired, CertificateUnknown, DecryptError,
            UnsupportedCertificate,
        };
        match error {
            Error::InvalidCertificate(_) | Error::NoCertificatesPresented => Self::ItsKey,
            Error::AlertReceived(
                AccessDenied | BadCertificate | CertificateRequired | CertificateUnknown | UnsupportedCertificate,
            ) => Self::MyKey,
            Error::AlertReceived(BadRecordMac | DecryptError) | Error::DecryptError => Self::Forged,
            Error::AlertReceived(_) => Self::Version,
            _ if handshaking => Self::Version,
            _ => Self::Forged,
        }
    }
}

/// Whether the ends of a connection have agreed on the protocol of the nodes. The library takes an
/// end that offers, or chooses, none at all.
///
/// # Errors
/// They have not.
pub(super) fn check_protocol(chosen: Option<&[u8]>) -> Result<(), Error> {
    if chosen.is_some() { Ok(()) } else { Err(Error::NoApplicationProtocol) }
}

/// An error of TLS as one of I/O, out of which [`of_io`] gets it again.
pub(super) fn into_io(error: Error) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, error)
}

/// The error of TLS inside of one of I/O.
pub(super) fn of_io(error: &std::io::Error) -> Option<&Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made with openssl, so that the description and the code stay one, and releases agree:
    /// `openssl kdf -keylen 32 -kdfopt digest:SHA256 -kdfopt hexkey:$key -kdfopt info:"monarch tls
    /// ed25519" HKDF`, behind the prefix of PKCS #8, `openssl pkey -inform DER -pubout`.
    #[test]
    fn the_key_is_what_openssl_makes_of_the_description() {
        let key = own_key(&[7; 32], &provider()).unwrap();
        let public = data_encoding::HEXLOWER.encode(key.end_entity_cert().unwrap());
        assert_eq!(public, "302a300506032b65700321002585220924d96afc42fd3206b529a42796160f18c6f4318ae06ddbb2d903d221");
    }

    #[test]
    fn the_protocol_inside_has_the_version_of_the_proof() {
        assert_eq!(ALPN, format!("monarch/{}", crate::http::auth::VERSION).as_bytes());
    }
}
