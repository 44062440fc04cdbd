//! Scalars that name nodes, and where something listens.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use schemars::{Schema, json_schema};

use super::super::error::{ErrorKind, wrong};
use super::super::units::{self, Parsed};
use super::Kind;
use crate::hostlist::parse_nodes;
use crate::listen::Listen;

/// A node, or several as Slurm writes them; kept as written.
#[derive(Clone, Debug)]
pub(in super::super) struct Hosts;

impl Kind for Hosts {
    type Out = String;
    fn parse(text: &str) -> Parsed<String> {
        let remedy = "write names or addresses, or names with ranges, such as \"node[01-08]\"";
        match parse_nodes(text) {
            Ok(found) if found.is_empty() => Err((ErrorKind::Missing, wrong("no node is named here", remedy))),
            Ok(_) => Ok(text.to_owned()),
            Err(error) => Err((ErrorKind::WrongType, wrong(error.to_string(), remedy))),
        }
    }
    fn show(value: &String) -> String {
        value.clone()
    }
    fn schema() -> Schema {
        json_schema!({ "type": ["string", "integer"], "examples": ["node1", "node[01-08]", "10.0.0.7"] })
    }
}

/// Where to listen; kept as written.
#[derive(Clone, Debug)]
pub(in super::super) struct Endpoint;

impl Kind for Endpoint {
    type Out = String;
    fn parse(text: &str) -> Parsed<String> {
        let remedy =
            "write an interface (ib0), a subnet (10.0.0.0/8) or an address of this node, or leave the line out";
        let complain = |error: crate::listen::ListenError| (ErrorKind::OutOfBounds, wrong(error.to_string(), remedy));
        Listen::parse(text).map(|_| text.to_owned()).map_err(complain)
    }
    fn show(value: &String) -> String {
        value.clone()
    }
    fn schema() -> Schema {
        json_schema!({ "type": "string", "examples": ["ib0", "10.0.0.0/8", "10.0.0.7"] })
    }
}

/// A name that DNS knows.
#[derive(Clone, Debug)]
pub(in super::super) struct Domain;

impl Kind for Domain {
    type Out = String;
    fn parse(text: &str) -> Parsed<String> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        if (1..=253).contains(&text.len()) && text.bytes().all(plain) {
            return Ok(text.to_owned());
        }
        let remedy = "write a name without scheme and port, such as workers.training.svc";
        Err((ErrorKind::WrongType, wrong(format!("`{text}` is not a name that DNS could know"), remedy)))
    }
    fn show(value: &String) -> String {
        value.clone()
    }
    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[A-Za-z0-9._-]{1,253}$" })
    }
}

/// A part of a whole: `0.125` or `12.5%`.
#[derive(Clone, Debug)]
pub(in super::super) struct Part;

impl Kind for Part {
    type Out = f64;
    fn parse(text: &str) -> Parsed<f64> {
        if let Some(share) = units::percent(text) {
            return share;
        }
        let complaint =
            || wrong(format!("`{text}` is not a part"), "write a number below 1, such as 0.125, or a percentage");
        text.parse().ok().filter(|part: &f64| part.is_finite()).ok_or_else(|| (ErrorKind::WrongType, complaint()))
    }
    fn show(value: &f64) -> String {
        value.to_string()
    }
    fn schema() -> Schema {
        json_schema!({ "type": ["number", "string"], "pattern": r"^[0-9.]+ ?%$", "minimum": 0.01, "maximum": 0.9, "examples": [0.125, "12.5%"] })
    }
}

/// An address with a port, or a port on the loopback interface, or `off`.
#[derive(Clone, Debug)]
pub(in super::super) struct Listener;

impl Kind for Listener {
    type Out = Option<SocketAddr>;
    fn parse(text: &str) -> Parsed<Option<SocketAddr>> {
        if text == "off" {
            return Ok(None);
        }
        let text_or_loopback = text.strip_prefix("localhost:").unwrap_or(text);
        let port = text_or_loopback.parse().ok().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        port.or_else(|| text.parse().ok()).map(Some).ok_or_else(|| {
            let remedy =
                "write a port such as 9464, an address with a port such as 127.0.0.1:9464 or \"[::1]:9464\", or off";
            (ErrorKind::WrongType, wrong(format!("`{text}` is not an address with a port"), remedy))
        })
    }
    fn show(value: &Option<SocketAddr>) -> String {
        value.map_or_else(|| "off".to_owned(), |address| address.to_string())
    }
    fn schema() -> Schema {
        json_schema!({ "type": ["string", "integer"], "minimum": 0, "maximum": 65535, "examples": ["127.0.0.1:9464", 9464, "off"] })
    }
}
