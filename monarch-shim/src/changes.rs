//! What the job changes below a root.
//!
//! Before a changing call is passed on, the entry and the listing of its directory turn to Bypass,
//! for all processes of the node at once: reads then see what the kernel sees. Bypass is set even
//! if the call fails in the end; that costs hits, never truth. Paths that lead into a root under
//! another spelling are found by the device of their parent directory.
//!
//! | module | what it holds |
//! |---|---|
//! | [`names`] | names that appear, disappear, are replaced or move |
//! | [`files`] | content and attributes that change |
//! | [`root_path`] | where the path of a root leads: mounts, and names above the root |
//! | [`target`] | what a changing call is to be made on |
//! | [`bypass`](mod@bypass) | turning entries to Bypass |
//! | [`real_path`] | from an open file to its entry |
//! | [`by_inode`] | entries that no path leads to |

mod by_inode;
mod bypass;
mod files;
mod names;
mod real_path;
mod root_path;
mod target;

pub use bypass::bypass;
pub use files::{
    OpenFile, Opened, before_write_open, descriptor_changes, file_changes, hide_below, hide_below_open,
    opened_for_writing,
};
pub use names::{name_changes, real_name_changes};
pub use root_path::{covered, root_path_changed, root_path_covered};
pub use target::Target;
