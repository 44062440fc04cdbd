//! How bytes move and how readers and copiers agree about it: the copy engines, and the state words
//! under contention.

#[path = "copying/descriptors.rs"]
mod descriptors;
#[path = "copying/engines.rs"]
mod engines;
#[path = "copying/ledger.rs"]
mod ledger;
#[path = "copying/mapped.rs"]
mod mapped;
#[path = "copying/protocol.rs"]
mod protocol;
