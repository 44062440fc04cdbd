//! The section `cluster` as written.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::super::choice::OneOf;
use super::super::given::{Count, Domain, Endpoint, Given, Hosts, Location, OrNone, Part, Rate, Time};
use super::super::model::{Discovery, Encryption, JobSecretSource, Spread};

/// Nodes that share copies and the index.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in super::super) struct RawCluster {
    /// How the nodes of the job are found: none (this node alone), auto (from the environment,
    /// whatever it is: slurm, then mpi, then torchrun; alone where there is none), static
    /// (`nodes` names them), slurm, mpi (the lists that PBS, LSF, OAR, Grid Engine and MPI
    /// launchers leave), torchrun (MASTER_ADDR and the number of nodes: the other nodes join
    /// through the first), dns (the addresses of the name `dns`). Default none.
    pub(in super::super) discovery: Option<Given<OneOf<Discovery>>>,
    /// The nodes, with discovery static: names or addresses, in a list, or as Slurm writes them,
    /// such as "node[01-08]". The same on all nodes.
    pub(in super::super) nodes: Option<RawNodes>,
    /// With discovery dns: the name whose addresses are the nodes, such as that of a headless
    /// service. All of them have to be there before the first node starts (in Kubernetes:
    /// publishNotReadyAddresses).
    pub(in super::super) dns: Option<Given<Domain>>,
    /// Which copies a node keeps of files that another one owns: sharded (none: they pass through),
    /// replicated (all that it reads, as long as there is room), hybrid (what is left of its
    /// room when it has what it owns). Default hybrid.
    pub(in super::super) placement: Option<Given<OneOf<Spread>>>,
    /// The interface (ib0), subnet (10.0.0.0/8) or address to listen on. Default: the address that
    /// this node's own name leads to. Never all interfaces.
    pub(in super::super) listen: Option<Given<Endpoint>>,
    /// TCP port for data and UDP port for gossip, the same on all nodes. Default: derived from the
    /// secret and the nodes, 20000 to 29999; 1024 to 65535.
    pub(in super::super) port: Option<Given<Count>>,
    /// File with your secret, which nodes prove to each other and which copies are named by: at
    /// least 16 bytes, yours alone (mode 0600), the same on all nodes; made when missing. Default
    /// $XDG_CONFIG_HOME/monarch/cluster-secret, or below ~/.config. MONARCH_CLUSTER_SECRET goes
    /// first.
    pub(in super::super) secret_file: Option<Given<Location>>,
    /// Whether each job has keys of its own between its nodes, so that keys of one job are worth
    /// nothing in another; copies stay findable for all jobs with your secret. none (all your jobs
    /// have the same keys), derived (keys from your secret and the job's number: MONARCH_JOB_ID, or
    /// that of the batch system), file (keys from your secret and the file `job_secret_file`). The
    /// variable MONARCH_CLUSTER_JOB_SECRET goes first. The same on all nodes. Default none.
    pub(in super::super) job_secret: Option<Given<OneOf<JobSecretSource>>>,
    /// With job_secret file: the file with the job's secret, another one for each job, yours alone
    /// (mode 0600), on a file system that all nodes see; the first node makes it when it is
    /// missing.
    pub(in super::super) job_secret_file: Option<Given<Location>>,
    /// Whether connections between nodes are encrypted, the same on all nodes: none (they are
    /// authentic, and can be read on the way), tls (TLS 1.3, with keys from the secret). Default
    /// none.
    pub(in super::super) encryption: Option<Given<OneOf<Encryption>>>,
    /// How long a node that is expected and was never seen counts as an owner. Default 60s; 0s to
    /// 1h.
    pub(in super::super) join_timeout: Option<Given<Time>>,
    /// How long a reader waits for a node that does not answer before it turns to the next one, or
    /// to the PFS. Default 2s; 10ms to 1m.
    pub(in super::super) peer_timeout: Option<Given<Time>>,
    /// Limit of what this node sends to all other nodes, such as 500MiB/s. Default none; at least
    /// 1MiB/s.
    pub(in super::super) bandwidth_limit: Option<Given<OrNone<Rate>>>,
    /// Limit of what this node sends to one of them. Default none; at least 1MiB/s.
    pub(in super::super) peer_bandwidth_limit: Option<Given<OrNone<Rate>>>,
    /// Most small files (up to 256 KiB each) that prefetch requests of another node at a time. 1:
    /// each by itself. Default 64; 1 to 64.
    pub(in super::super) batch_files: Option<Given<Count>>,
    /// With placement sharded: part of each tier for transient copies of files that other nodes
    /// own. Default 0.125; 0.01 to 0.9, or 1% to 90%.
    #[serde(alias = "passing")]
    pub(in super::super) transient_share: Option<Given<Part>>,
}

/// Nodes, in a list or in one text.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(in super::super) enum RawNodes {
    /// All of them.
    Text(Given<Hosts>),
    /// One or several in each element.
    List(Vec<Given<Hosts>>),
}

impl<'de> Deserialize<'de> for RawNodes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrList)
    }
}

/// By hand, as serde's untagged enums lose place and reason of a mistake.
struct TextOrList;

impl<'de> Visitor<'de> for TextOrList {
    type Value = RawNodes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nodes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<RawNodes, E> {
        Given::deserialize(serde::de::value::StrDeserializer::new(text)).map(RawNodes::Text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<RawNodes, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(seq)).map(RawNodes::List)
    }
}
