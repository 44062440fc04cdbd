//! The namespace index and the resolution of paths, compared with the kernel on real directory
//! trees, and under damage.

#[path = "namespace/changes.rs"]
mod changes;
#[path = "namespace/common.rs"]
mod common;
#[path = "namespace/contents.rs"]
mod contents;
#[path = "namespace/damage.rs"]
mod damage;
#[path = "namespace/helped.rs"]
mod helped;
#[path = "namespace/paths.rs"]
mod paths;
#[path = "namespace/saved.rs"]
mod saved;
#[path = "namespace/trees.rs"]
mod trees;
#[path = "namespace/unsound.rs"]
mod unsound;
