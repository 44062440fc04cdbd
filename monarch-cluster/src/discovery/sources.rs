//! The list of nodes of each kind of job.
//!
//! Slurm has it in a variable; PBS, OAR, Grid Engine, Cobalt and Fujitsu's scheduler name a file,
//! LSF has either. Open MPI, MPICH and Intel MPI tell a process how many others there are, but not
//! where: the only list of theirs is the default file of hosts, for which each has a variable
//! (Kubeflow's MPI operator sets all of them).

use std::path::Path;

use super::error::DiscoveryError;
use super::found::{Found, set};
use super::local::{Env, Local};
use super::torchrun;
use monarch_config::hostlist::{HostlistError, parse_hostlist, parse_nodes};

/// Slurm was asked for, and is not there.
pub(super) const NO_SLURM: DiscoveryError =
    DiscoveryError::Absent { discovery: "slurm", variables: "SLURM_STEP_NODELIST, SLURM_JOB_NODELIST" };

/// A list of a launcher was asked for, and there is none.
pub(super) const NO_LIST: DiscoveryError = DiscoveryError::Absent {
    discovery: "mpi",
    variables: "PBS_NODEFILE, LSB_MCPU_HOSTS, LSB_HOSTS, OAR_NODEFILE, PE_HOSTFILE, OMPI_MCA_orte_default_hostfile, \
                PRTE_MCA_prte_default_hostfile, I_MPI_HYDRA_HOST_FILE, HYDRA_HOST_FILE",
};

/// The step first: it may have fewer nodes than the job. The last one is what both were called
/// before 2010, and still set.
const SLURM_VARIABLES: [&str; 3] = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];

/// Variables that name a file, a node in each line.
const NODE_FILE_VARIABLES: [&str; 12] = [
    "PBS_NODEFILE",
    "LSB_DJOB_HOSTFILE",
    "OAR_NODEFILE",
    "OAR_NODE_FILE",
    "PE_HOSTFILE",
    "COBALT_NODEFILE",
    "PJM_O_NODEINF",
    "PRTE_MCA_prte_default_hostfile",
    "OMPI_MCA_prte_default_hostfile",
    "OMPI_MCA_orte_default_hostfile",
    "I_MPI_HYDRA_HOST_FILE",
    "HYDRA_HOST_FILE",
];

/// Whatever the environment is; `None` where it is that of no job.
pub(super) fn auto(env: &Env<'_>, local: &dyn Local) -> Result<Option<Found>, DiscoveryError> {
    if let Some(found) = slurm(env)? {
        return Ok(Some(found));
    }
    match lists(env, local)? {
        None => torchrun::find(env, local),
        found => Ok(found),
    }
}

/// Slurm's list. Open MPI has a step of its own for its daemons, on all nodes but the one where
/// `mpirun` runs: below it, neither the list of the step nor the number in it is that of the
/// processes.
pub(super) fn slurm(env: &Env<'_>) -> Result<Option<Found>, DiscoveryError> {
    let by_mpirun = set(env, "OMPI_COMM_WORLD_SIZE").is_some();
    let job = if by_mpirun { &SLURM_VARIABLES[1..] } else { &SLURM_VARIABLES[..] };
    let Some((variable, text)) = job.iter().find_map(|name| Some((*name, set(env, name)?))) else {
        return Ok(None);
    };
    let members = parse_hostlist(&text).map_err(|error| bad(variable, error))?;
    let names = set(env, "SLURMD_NODENAME").into_iter().collect();
    let rank = set(env, "SLURM_NODEID").filter(|_| !by_mpirun).and_then(|text| text.trim().parse().ok());
    Ok(Some(Found { names, rank, ..Found::new(members, variable) }))
}

/// The list that another scheduler or an MPI launcher leaves.
pub(super) fn lists(env: &Env<'_>, local: &dyn Local) -> Result<Option<Found>, DiscoveryError> {
    if let Some(found) = lsf(env)? {
        return Ok(Some(found));
    }
    let Some((variable, path)) = NODE_FILE_VARIABLES.iter().find_map(|name| Some((*name, set(env, name)?))) else {
        return Ok(None);
    };
    let text = local.read(Path::new(path.trim())).map_err(|error| DiscoveryError::File {
        variable: variable.to_owned(),
        path: path.clone(),
        error,
    })?;
    let hosts: Vec<&str> = text.lines().filter_map(host_of_line).collect();
    Ok(Some(Found::new(one_by_one(&hosts, variable)?, variable)))
}

/// `LSB_MCPU_HOSTS` has a number of slots behind each name; `LSB_HOSTS` has a name for each slot.
fn lsf(env: &Env<'_>) -> Result<Option<Found>, DiscoveryError> {
    let (variable, text, every) = if let Some(text) = set(env, "LSB_MCPU_HOSTS") {
        ("LSB_MCPU_HOSTS", text, 2)
    } else if let Some(text) = set(env, "LSB_HOSTS") {
        ("LSB_HOSTS", text, 1)
    } else {
        return Ok(None);
    };
    let hosts: Vec<&str> = text.split_whitespace().step_by(every).collect();
    Ok(Some(Found::new(one_by_one(&hosts, variable)?, variable)))
}

/// The host of a line such as `node1 slots=4`, `node1:4` (MPICH) or `node1 4 all.q@node1` (Grid
/// Engine).
fn host_of_line(line: &str) -> Option<&str> {
    let line = line.split('#').next()?;
    let host = line.split_whitespace().next()?;
    match host.split_once(':') {
        Some((name, slots)) if slots.bytes().all(|b| b.is_ascii_digit()) => Some(name),
        _ => Some(host),
    }
}

/// Names that are not in bracket form, each once.
fn one_by_one(hosts: &[&str], origin: &str) -> Result<Vec<String>, DiscoveryError> {
    parse_hostlist(&hosts.join(",")).map_err(|error| bad(origin, error))
}

/// The nodes that the configuration names.
pub(super) fn of_nodes(nodes: &[String]) -> Result<Found, DiscoveryError> {
    let mut members: Vec<String> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for entry in nodes {
        let names = parse_nodes(entry).map_err(|error| bad("cluster.nodes", error))?;
        members.extend(names.into_iter().filter(|name| seen.insert(name.clone())));
    }
    Ok(Found::new(members, "cluster.nodes"))
}

/// The addresses that a name leads to, in an order that all nodes see. A node that has both kinds
/// of address is counted once: the newer kind is left out where there is the older one.
pub(super) fn dns(name: &str, local: &dyn Local) -> Result<Found, DiscoveryError> {
    let unresolved = |error| DiscoveryError::Unresolved { member: name.to_owned(), error };
    let mut found = local.resolve(name).map_err(unresolved)?;
    found.sort_unstable();
    found.dedup();
    if found.iter().any(std::net::IpAddr::is_ipv4) {
        found.retain(std::net::IpAddr::is_ipv4);
    }
    let members = found.iter().map(ToString::to_string).collect();
    Ok(Found::new(members, &format!("cluster.dns {name}")))
}

/// Refuses a list that is there and names no node.
pub(super) fn checked(members: Vec<String>, origin: &str, none: bool) -> Result<Vec<String>, DiscoveryError> {
    if members.is_empty() && !none {
        return Err(DiscoveryError::Empty { origin: origin.to_owned() });
    }
    Ok(members)
}

fn bad(origin: &str, error: HostlistError) -> DiscoveryError {
    DiscoveryError::List { origin: origin.to_owned(), error }
}
