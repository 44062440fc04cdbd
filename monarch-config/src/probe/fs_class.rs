//! Tells local file systems from those that are reached over a network.
//!
//! The name from mountinfo decides, since many parallel file systems come through FUSE and share
//! its number; the number (`f_type`, `linux/magic.h` and the vendors' headers) decides where the
//! name is not to be had.

/// What a file system is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FsClass {
    /// Memory.
    Memory,
    /// A disk of this node, or an overlay on one.
    Local,
    /// Reached over a network, or through a FUSE program that most likely does so.
    Network,
    /// Not known, and not on a block device.
    Unknown,
}

const MEMORY: &[&str] = &["tmpfs", "ramfs", "devtmpfs", "hugetlbfs"];

const LOCAL: &[&str] = &[
    "ext2",
    "ext3",
    "ext4",
    "xfs",
    "btrfs",
    "zfs",
    "f2fs",
    "bcachefs",
    "jfs",
    "reiserfs",
    "nilfs2",
    "overlay",
    "overlayfs",
    "aufs",
    "rootfs",
    "squashfs",
    "erofs",
    "vfat",
    "exfat",
    "ntfs",
    "ntfs3",
    "fuseblk",
    "fuse.fuse-overlayfs",
    "fuse.ntfs-3g",
    "ecryptfs",
];

const NETWORK: &[&str] = &[
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "mmfs",
    "beegfs",
    "fhgfs",
    "glusterfs",
    "ceph",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "pvfs2",
    "orangefs",
    "panfs",
    "wekafs",
    "ocfs2",
    "gfs2",
    "coda",
    "ncpfs",
    "dvs",
    "fuse",
    "daos",
    "vboxsf",
    "scoutfs",
];

const MEMORY_MAGIC: &[u64] = &[0x0102_1994, 0x8584_58f6, 0x9584_58f6];

const LOCAL_MAGIC: &[u64] =
    &[0xef53, 0x5846_5342, 0x9123_683e, 0x2fc1_2fc1, 0xf2f5_2010, 0xca45_1a4e, 0x794c_7630, 0x7371_7368, 0xe0f5_e1e2];

/// NFS, Lustre, GPFS, BeeGFS, FUSE, Ceph, CIFS, SMB2, SMB, 9p, AFS, AFS (kernel), PVFS2, PanFS,
/// OCFS2, GFS2, Coda.
const NETWORK_MAGIC: &[u64] = &[
    0x6969,
    0x0bd0_0bd0,
    0x4750_4653,
    0x1983_0326,
    0x6573_5546,
    0x00c3_6400,
    0xff53_4d42,
    0xfe53_4d42,
    0x517b,
    0x0102_1997,
    0x5346_414f,
    0x6b41_4653,
    0x2003_0528,
    0xaad7_aaea,
    0x7461_636f,
    0x0116_1970,
    0x7375_7245,
];

impl FsClass {
    /// Classifies by name, then by number, then by whether a block device carries it.
    #[must_use]
    pub fn of(fs_type: &str, magic: u64, dev: u64) -> Self {
        Self::by_name(fs_type).or_else(|| Self::by_magic(magic)).unwrap_or_else(|| Self::by_device(dev))
    }

    fn by_name(name: &str) -> Option<Self> {
        if MEMORY.contains(&name) {
            Some(Self::Memory)
        } else if LOCAL.contains(&name) {
            Some(Self::Local)
        } else if NETWORK.contains(&name) || name.starts_with("fuse.") {
            Some(Self::Network)
        } else {
            None
        }
    }

    fn by_magic(magic: u64) -> Option<Self> {
        let tables = [(MEMORY_MAGIC, Self::Memory), (LOCAL_MAGIC, Self::Local), (NETWORK_MAGIC, Self::Network)];
        tables.iter().find(|(numbers, _)| numbers.contains(&magic)).map(|(_, class)| *class)
    }

    /// File systems without a block device have major number 0.
    fn by_device(dev: u64) -> Self {
        if rustix::fs::major(dev) == 0 { Self::Unknown } else { Self::Local }
    }
}

#[cfg(test)]
mod tests {
    use super::FsClass::{self, Local, Memory, Network, Unknown};

    #[test]
    fn names_decide_then_numbers_then_devices() {
        for (name, magic, dev, class) in [
            ("lustre", 0, 0, Network),
            ("fuse.glusterfs", 0x6573_5546, 0, Network),
            ("fuse.slowfs", 0x6573_5546, 0, Network),
            ("fuse.fuse-overlayfs", 0x6573_5546, 0, Local),
            ("overlay", 0x794c_7630, 0, Local),
            ("tmpfs", 0x0102_1994, 0, Memory),
            ("", 0x6969, 0, Network),
            ("", 0xef53, 0, Local),
            ("newfs", 1, 0x0801, Local),
            ("newpfs", 1, 0x0031, Unknown),
        ] {
            assert_eq!(FsClass::of(name, magic, dev), class, "{name} {magic:x}");
        }
    }
}
