//! Nodes of a job that share copies and the index: each byte leaves the PFS once, whatever fails.
//!
//! | module | what it does |
//! |---|---|
//! | [`discovery`] | which nodes the job has, from the environment it was started in |
//! | [`secret`] | what they prove to each other |
//! | [`http`] | HTTP/1.1 between agents: server, client, authentication |
//! | [`election`] | which node scans a root, and who gets the index from whom |
//! | [`index_image`] | an index on its way |
//! | [`membership`] | who is there, by gossip and by what readers come upon |
//! | [`node`] | this node among the others: what it asks, what it answers |
//! | [`directory`] | who owns a file, who else holds it: pure, so that a simulation drives the very code |

pub mod directory;
pub mod discovery;
pub mod election;
pub mod http;
pub mod index_image;
pub mod membership;
pub mod node;
pub mod secret;
