//! Values of `Authorization` and `WWW-Authenticate`: what is taken reads the same once it is written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use monarch_core::cluster::wire::auth;

fuzz_target!(|value: &str| {
    if let Some(taken) = auth::Credentials::parse(value) {
        assert!(auth::is_name(&taken.node));
        assert_eq!(auth::Credentials::parse(&taken.to_string()), Some(taken));
    }
    if let Some(nonce) = auth::parse_challenge(value) {
        assert_eq!(auth::parse_challenge(&auth::challenge(nonce)), Some(nonce));
    }
});
