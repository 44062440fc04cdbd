//! The proofs and the headers that carry them.

use super::*;

const NONCE: Nonce = Nonce([0xab; 16]);
const CNONCE: Nonce = Nonce([0x12; 16]);

fn exchange<'a>(client: &'a str, server: &'a str) -> Exchange<'a> {
    Exchange { nonce: NONCE, cnonce: CNONCE, client, server }
}

/// Made with openssl as the module's documentation says, so that the description and the code stay
/// one.
#[test]
fn the_proof_is_what_openssl_makes_of_the_description() {
    let proof = exchange("z", "o").proof(&Key::new([7; 32]));
    assert_eq!(hex::encode(&proof), include_str!("proof.hex").trim());
}

#[test]
fn each_field_is_part_of_the_proof() {
    let key = Key::new([7; 32]);
    let proof = exchange("z", "o").proof(&key);
    assert!(exchange("z", "o").proves(&key, &proof));
    assert!(!exchange("z", "o").proves(&Key::new([8; 32]), &proof));
    assert!(!exchange("z", "p").proves(&key, &proof));
    assert!(!exchange("y", "o").proves(&key, &proof));
    assert!(!Exchange { nonce: CNONCE, ..exchange("z", "o") }.proves(&key, &proof));
    assert!(!Exchange { cnonce: NONCE, ..exchange("z", "o") }.proves(&key, &proof));
}

#[test]
fn each_side_and_purpose_has_a_key_of_its_own() {
    let (key, exchange) = (Key::new([7; 32]), exchange("z", "o"));
    let keys = [(Side::Client, "heads"), (Side::Client, "bodies"), (Side::Server, "heads"), (Side::Server, "bodies")]
        .map(|(side, purpose)| exchange.session_key(&key, side, purpose));
    for (n, one) in keys.iter().enumerate() {
        assert!(!keys[..n].contains(one) && *one != exchange.proof(&key));
    }
}

#[test]
fn fields_do_not_run_into_each_other() {
    let key = Key::new([7; 32]);
    assert_ne!(mac(&key, &["ab", "c"]), mac(&key, &["a", "bc"]));
    assert_ne!(mac(&key, &["ab", ""]), mac(&key, &["ab"]));
    assert_ne!(mac(&key, &["a,1:b"]), mac(&key, &["a", "b"]));
}

#[test]
fn credentials_survive_their_header() {
    let given = Credentials { node: "[::1]:80".into(), nonce: NONCE, cnonce: CNONCE, mac: [9; 32] };
    assert_eq!(Credentials::parse(&given.to_string()), Some(given));
    assert_eq!(parse_challenge(&challenge(NONCE)), Ok(NONCE));
}

#[test]
fn another_version_is_told_by_its_number() {
    let old = format!("Monarch nonce=\"{NONCE}\"");
    let new = challenge(NONCE).replace("\"4\"", "\"30\"");
    for (value, what) in
        [(old.as_str(), "version 1 "), (&new, "version 30 "), ("Basic x", "no proof"), ("", "no proof")]
    {
        let said = parse_challenge(value).unwrap_err();
        assert!(said.contains(what), "{value}: {said}");
    }
}

#[test]
fn credentials_with_anything_odd_are_refused() {
    let good = Credentials { node: "a".into(), nonce: NONCE, cnonce: CNONCE, mac: [9; 32] }.to_string();
    let bad = [
        String::new(),
        "Monarch".into(),
        good.replace("Monarch", "Basic"),
        good.replace("node=\"a\"", "node=\"\""),
        good.replace("node=\"a\"", "node=\"a b\""),
        good.replace("node=\"a\"", "node=a"),
        good.replace("ab\"", "a\""),
        good.replace(" mac", " other"),
        format!("{good}, node=\"b\""),
        format!("{good},"),
        good.replace(", cnonce", "; cnonce"),
    ];
    for value in bad {
        assert_eq!(Credentials::parse(&value), None, "{value}");
    }
}

#[test]
fn a_key_is_not_printed() {
    assert_eq!(format!("{:?}", Key::new([7; 32])), "Key(..)");
}
