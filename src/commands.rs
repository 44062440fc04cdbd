//! The commands, a file each. A command uses what lies beside this module, and no other command.

pub(crate) mod agent;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod du;
pub(crate) mod env;
pub(crate) mod evict;
pub(crate) mod explain;
pub(crate) mod flush;
pub(crate) mod hold;
pub(crate) mod index;
pub(crate) mod kernel;
pub(crate) mod outputs;
pub(crate) mod pages;
pub(crate) mod raw_calls;
pub(crate) mod recover;
pub(crate) mod refresh;
pub(crate) mod report;
pub(crate) mod resolve;
pub(crate) mod run;
pub(crate) mod simulate;
pub(crate) mod stage;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod verify;
