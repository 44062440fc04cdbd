//! Why the nodes of a job are not known, and what to do about it.

use std::io;

use crate::secret::SecretError;
use monarch_config::hostlist::HostlistError;
use monarch_config::listen::ListenError;

/// The nodes of the job, or the place of one of them, cannot be found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoveryError {
    /// The environment is not the one that was asked for.
    #[error(
        "cluster.discovery is {discovery}, and the environment has none of {variables}: run this inside such a job, or set \
         cluster.discovery to auto, none or static"
    )]
    Absent {
        /// The word in the configuration.
        discovery: &'static str,
        /// The variables that were looked for.
        variables: &'static str,
    },
    /// The job is to have keys of its own, and nothing tells it from other jobs.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A list of nodes that cannot be understood.
    #[error("{origin}: {error}")]
    List {
        /// The variable, or the setting.
        origin: String,
        /// What is wrong with it.
        error: HostlistError,
    },
    /// A list without a node.
    #[error("{origin} names no node: set cluster.discovery to none, or to static and name them in cluster.nodes")]
    Empty {
        /// The variable, or the setting.
        origin: String,
    },
    /// A file with the list of nodes that cannot be read here.
    #[error(
        "{variable} names the file {path}, which cannot be read on this node: {error}; name the nodes in cluster.nodes, with cluster.discovery static"
    )]
    File {
        /// The variable.
        variable: String,
        /// The file.
        path: String,
        /// Why not.
        error: io::Error,
    },
    /// A variable that should hold a number.
    #[error(
        "{variable} is `{text}`, which is not the number of a node or of nodes: correct it, or set cluster.discovery to static"
    )]
    Number {
        /// The variable.
        variable: String,
        /// What it holds.
        text: String,
    },
    /// Two nodes of a torchrun job would have one name.
    #[error(
        "MASTER_ADDR is {master}, which is this node, and {variable} is {rank}: MASTER_ADDR has to be the node of rank 0, by a name that others reach"
    )]
    Master {
        /// Its value.
        master: String,
        /// The variable with the rank of this node.
        variable: String,
        /// The rank of this node.
        rank: usize,
    },
    /// This node does not find itself.
    #[error(
        "this node is not among the nodes of the job, {list}: it was looked for as {names}, then by its addresses. Name it in \
         cluster.nodes with cluster.discovery static, or set cluster.discovery to none"
    )]
    NotListed {
        /// The list, shortened.
        list: String,
        /// The names under which this node was looked for.
        names: String,
    },
    /// This node finds itself more than once.
    #[error(
        "{first} and {second} both lead to this node: name each node once, or set cluster.listen to the address of the one that is meant"
    )]
    Twice {
        /// One member.
        first: String,
        /// Another one.
        second: String,
    },
    /// A name that leads nowhere.
    #[error("no address is known for the node {member}: {error}; check /etc/hosts or DNS, or name nodes by address")]
    Unresolved {
        /// The name.
        member: String,
        /// Why not.
        error: io::Error,
    },
    /// `cluster.listen` cannot be read.
    #[error("cluster.listen: {0}: write an interface (ib0), a subnet (10.0.0.0/8) or an address of this node")]
    Listen(#[from] ListenError),
    /// No interface of this node fits `cluster.listen`.
    #[error(
        "cluster.listen is {listen}, and this node has {addresses}: write the interface or the subnet that all nodes have"
    )]
    NoInterface {
        /// The setting.
        listen: String,
        /// The addresses of this node.
        addresses: String,
    },
    /// The own name does not lead to an address that others could reach.
    #[error(
        "the name of this node, {me}, leads to no address of its own: set cluster.listen to its interface or subnet"
    )]
    NoAddress {
        /// Its name among the members.
        me: String,
    },
    /// An address that no other node could reach.
    #[error("{address} cannot be reached from other nodes: set cluster.listen to the interface or subnet between them")]
    Loopback {
        /// The address.
        address: std::net::IpAddr,
    },
}
