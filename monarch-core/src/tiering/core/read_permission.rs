//! Whether the mode of a file lets this user read it, without a call to the PFS.

use monarch_abi::index::{Index, Record};
use std::sync::OnceLock;

/// User and groups of this process.
#[derive(Debug)]
struct User {
    uid: u32,
    groups: Vec<u32>,
}

impl User {
    fn of_process() -> Self {
        let mut groups: Vec<u32> =
            rustix::process::getgroups().unwrap_or_default().into_iter().map(rustix::process::Gid::as_raw).collect();
        groups.push(rustix::process::getegid().as_raw());
        Self { uid: rustix::process::geteuid().as_raw(), groups }
    }

    /// Root may read, unless the PFS says otherwise.
    fn may_read(&self, (uid, gid): (u32, u32), mode: u16) -> bool {
        let bit = match (uid == self.uid, self.groups.contains(&gid)) {
            (true, _) => 0o400,
            (false, true) => 0o040,
            (false, false) => 0o004,
        };
        self.uid == 0 || mode & bit != 0
    }
}

/// Whether the mode of a file lets this user read it. If it does not, an access list may still
/// grant it. If it does, an access list may still deny it, but only one that was set before the
/// file's time of change in the index.
pub(crate) fn by_mode(index: &Index<'_>, record: &Record) -> bool {
    static USER: OnceLock<User> = OnceLock::new();
    let user = USER.get_or_init(User::of_process);
    index.owner(record).is_some_and(|owner| user.may_read(owner, record.mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_that_counts_is_the_first_that_fits() {
        let user = User { uid: 5, groups: vec![7, 8] };
        for (owner, mode, may) in [
            ((5, 1), 0o400, true),
            ((5, 7), 0o077, false),
            ((6, 8), 0o040, true),
            ((6, 8), 0o404, false),
            ((6, 9), 0o004, true),
            ((6, 9), 0o660, false),
        ] {
            assert_eq!(user.may_read(owner, mode), may, "{owner:?} {mode:o}");
        }
        assert!(User { uid: 0, groups: vec![] }.may_read((6, 9), 0));
    }
}
