//! Jobs of which only the first node is known: torchrun and what sets its variables (Kubernetes'
//! PyTorchJob, for one).
//!
//! `MASTER_ADDR` is the node of rank 0; the others are not named anywhere. So the members are that
//! one and this one, under the address from which it reaches the first: the others come to know it
//! when it joins. How many there are is known, and no more.

use super::error::DiscoveryError;
use super::found::{Found, set};
use super::local::{Env, Local};
use monarch_config::listen::host_and_port;

/// torchrun was asked for, and is not there.
pub(super) const NO_TORCHRUN: DiscoveryError = DiscoveryError::Absent {
    discovery: "torchrun",
    variables: "MASTER_ADDR with GROUP_WORLD_SIZE or NNODES, and GROUP_RANK or NODE_RANK",
};

/// The first node; with `PET_` they are the defaults of torchrun's own flags.
const MASTER_VARIABLES: [&str; 2] = ["MASTER_ADDR", "PET_MASTER_ADDR"];
/// How many nodes.
const NODE_COUNT_VARIABLES: [&str; 3] = ["GROUP_WORLD_SIZE", "NNODES", "PET_NNODES"];
/// Which of them this is.
const NODE_RANK_VARIABLES: [&str; 3] = ["GROUP_RANK", "NODE_RANK", "PET_NODE_RANK"];

/// The first node and this one; `None` where there is no such job.
pub(super) fn find(env: &Env<'_>, local: &dyn Local) -> Result<Option<Found>, DiscoveryError> {
    let first = |names: &[&'static str]| names.iter().find_map(|name| Some((*name, set(env, name)?)));
    let (Some((origin, master)), Some((nodes, text))) = (first(&MASTER_VARIABLES), first(&NODE_COUNT_VARIABLES)) else {
        return Ok(None);
    };
    // An elastic job has a range, such as 2:4.
    let expected = number(nodes, text.rsplit(':').next().unwrap_or_default(), &text)?.max(1);
    let master = master.trim().to_owned();
    let mut found =
        Found { members: vec![master.clone()], rank: Some(0), expected, origin: origin.to_owned(), ..Found::default() };
    if expected == 1 {
        return Ok(Some(found));
    }
    let Some((variable, text)) = first(&NODE_RANK_VARIABLES) else {
        return Ok(None);
    };
    found.partial = true;
    let rank = number(variable, &text, &text)?;
    if rank > 0 {
        found.members.push(address(&master, variable, rank, local)?);
        found.rank = Some(1);
    }
    Ok(Some(found))
}

fn number(variable: &str, digits: &str, text: &str) -> Result<usize, DiscoveryError> {
    let bad = |_| DiscoveryError::Number { variable: variable.to_owned(), text: text.to_owned() };
    digits.trim().parse().map_err(bad)
}

/// The address from which this node reaches the first one.
fn address(master: &str, variable: &str, rank: usize, local: &dyn Local) -> Result<String, DiscoveryError> {
    let (host, _) = host_and_port(master);
    let unresolved = |error| DiscoveryError::Unresolved { member: master.to_owned(), error };
    let there = local.resolve(host).map_err(unresolved)?;
    if there.iter().any(|address| local.is_local(*address)) {
        let variable = variable.to_owned();
        return Err(DiscoveryError::Master { master: master.to_owned(), variable, rank });
    }
    let source = there.iter().find_map(|address| local.source_for(*address));
    let nowhere = || unresolved(std::io::Error::other("no route leads there"));
    Ok(source.ok_or_else(nowhere)?.to_string())
}
