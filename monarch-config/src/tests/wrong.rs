//! Configuration wrong in each field: the error names the line, says what is wrong and what to
//! write.

use super::super::{Compression, ErrorKind};
use super::{load_text, node, screen};
use ErrorKind::{
    BadRoot, BadTier, Exposed, Missing, OutOfBounds, Overlap, Syntax, TierOnNetwork, TooBig, UnknownKey, WrongType,
    WrongUnit,
};

const ROOTS: &str = "dataset: { roots: [/scratch/imagenet] }\n";

/// Line 1 is a sound data set, `yaml` follows.
#[track_caller]
fn with_root(yaml: &str, kind: ErrorKind, line: usize, fragments: &[&str]) {
    check(&format!("{ROOTS}{yaml}"), kind, Some(line), fragments);
}

#[track_caller]
fn check(yaml: &str, kind: ErrorKind, line: Option<usize>, fragments: &[&str]) {
    let error = load_text(yaml, &node()).map(|found| found.config).expect_err(yaml);
    let text = format!("{error}\n{}", error.remedy());
    assert_eq!((error.kind(), error.file_line().map(|(_, line)| line)), (kind, line), "{yaml}\n{text}");
    for fragment in fragments {
        assert!(text.contains(fragment), "no `{fragment}` in:\n{text}\nfor:\n{yaml}");
    }
    let screen = screen(&error);
    assert!(screen.lines().count() <= 24, "more than a screen:\n{screen}");
    assert!(!error.remedy().is_empty() && screen.is_ascii(), "{screen}");
}

#[test]
fn syntax_and_shape() {
    check("dataset: { roots: [/a\nsource: {}\n", Syntax, Some(2), &["not valid YAML", "brackets"]);
    check("dataset:\n\troots: [/a]\n", Syntax, Some(2), &["tab", "spaces"]);
    check("source: {}\nsource: {}\n", Syntax, Some(1), &["source", "keep one of the two"]);
    with_root("sorce: {}\n", UnknownKey, 2, &["unknown key `sorce`", "did you mean `source`?"]);
    with_root("source:\n  io_sise: 4MiB\n", UnknownKey, 3, &["source: unknown key `io_sise`", "`io_size`"]);
    with_root("tiers:\n  - path: /local/nvme\n    capcity: 1GiB\n", UnknownKey, 4, &["tiers[0]", "`capacity`"]);
    with_root("complete_wait: 2s\n", UnknownKey, 2, &["`complete_wait` is not available yet", "leave it out"]);
    with_root("source: 4MiB\n", WrongType, 2, &["source: a section belongs here", "4MiB", "key: value"]);
    with_root("source:\n  io_size: [4MiB]\n", WrongType, 3, &["source.io_size", "this is a list", "one value"]);
    with_root("tiers: /local/nvme\n", WrongType, 2, &["tiers: a list belongs here", "write a list"]);
    with_root("log: { level: { a: b } }\n", WrongType, 2, &["log.level: a single value", "a section with keys"]);
}

#[test]
fn roots() {
    check("", Missing, None, &["no root is given", "--root /path", "MONARCH_DATASET__ROOTS", "roots: [/path]"]);
    check("dataset: { roots: [] }\n", Missing, Some(1), &["no root is given"]);
    check("dataset: { roots: /scratch }\n", WrongType, Some(1), &["dataset.roots: a list belongs here"]);
    check("dataset:\n  roots:\n    - 7\n", WrongType, Some(3), &["a path", "write `- /path`"]);
    check("dataset:\n  roots:\n    - { aliases: [/x] }\n", Missing, Some(3), &["`path` is missing"]);
    check(
        "dataset:\n  roots:\n    - /none\n",
        BadRoot,
        Some(3),
        &["dataset.roots[0]", "/none", "No such file", "mounted on this node"],
    );
    check("dataset: { roots: [/scratch/list.txt] }\n", BadRoot, Some(1), &["is not a directory", "name the directory"]);
    check("dataset: { roots: [imagenet] }\n", BadRoot, Some(1), &["relative path", "beginning with /"]);
    check("dataset: { roots: [/scratch/../data] }\n", BadRoot, Some(1), &["`..`", "realpath"]);
    check("dataset: { roots: [$SCRATCH/imagenet] }\n", BadRoot, Some(1), &["not filled in", "shell"]);
    check("dataset: { roots: [/] }\n", BadRoot, Some(1), &["top of the file tree", "data set itself"]);
    let two = |a: &str, b: &str| format!("dataset:\n  roots:\n    - {a}\n    - {b}\n");
    check(&two("/scratch/audio", "/scratch/audio/"), Overlap, Some(4), &["same directory", "name it once"]);
    check(&two("/scratch/imagenet", "/data"), Overlap, Some(4), &["same directory", "aliases: [/data]"]);
    check(&two("/scratch/imagenet", "/scratch/imagenet/train"), Overlap, Some(4), &["overlap", "keep the outer one"]);
    check(
        &two("/data/train", "/scratch/imagenet"),
        Overlap,
        Some(4),
        &["/scratch/imagenet/train lies inside", "keep the outer"],
    );
    let alias = "dataset:\n  roots:\n    - path: /scratch/imagenet\n      aliases: [/data, /scratch/audio]\n";
    check(alias, BadRoot, Some(4), &["aliases[1]", "another directory", "root of its own"]);
}

#[test]
fn dataset_and_source() {
    let dataset = |rest: &str| format!("dataset:\n  roots: [/data]\n  {rest}\n");
    check(&dataset("consistency: imutable"), WrongType, Some(3), &["no consistency called", "did you mean immutable?"]);
    check(&dataset("revalidate: 2h"), OutOfBounds, Some(3), &["2h is above the most allowed, 1h", "default is 5s"]);
    check(&dataset("verify_on_open: perhaps"), WrongType, Some(3), &["perhaps"]);
    check(&dataset("min_file_age: 10"), WrongUnit, Some(3), &["without a unit", "10s or 10ms"]);
    check(&dataset("min_file_age: 2h"), OutOfBounds, Some(3), &["2h is above the most allowed, 1h", "default is 10s"]);
    let source = |rest: &str| format!("source:\n  {rest}\n");
    with_root(&source("io_size: 400 GB/s"), WrongUnit, 3, &["is a rate, and this is a size", "write 400 GB"]);
    with_root(&source("io_size: 4194304"), WrongUnit, 3, &["without a unit", "MiB"]);
    with_root(
        &source("io_size: 1KiB"),
        OutOfBounds,
        3,
        &["below the least allowed, 4KiB", "4KiB to 64MiB", "default is 4MiB"],
    );
    with_root(&source("io_size: 1GiB"), OutOfBounds, 3, &["above the most allowed, 64MiB"]);
    with_root(&source("io_size: 4MB"), OutOfBounds, 3, &["multiple of 4KiB", "4MiB instead"]);
    with_root(&source("max_inflight: 0"), OutOfBounds, 3, &["below the least allowed, 1", "1 to 1024"]);
    with_root(&source("max_inflight: 4096"), OutOfBounds, 3, &["above the most allowed, 1024"]);
    with_root(&source("max_inflight: many"), WrongType, 3, &["not a whole number", "such as 64"]);
    with_root(&source("max_inflight: -1"), WrongType, 3, &["not a whole number"]);
    with_root(&source("bandwidth_limit: 500MiB"), WrongUnit, 3, &["not a rate", "500MiB/s", "none"]);
    with_root(&source("bandwidth_limit: 4Gbit/s"), WrongUnit, 3, &["counts bits", "bytes per second"]);
    with_root(&source("bandwidth_limit: 1kB/s"), OutOfBounds, 3, &["1MiB/s to 1TiB/s", "or none"]);
    with_root(&source("iops_limit: 0"), OutOfBounds, 3, &["1 to 1000000", "or none"]);
    with_root(&source("iops_limit: 5k"), WrongType, 3, &["not a whole number", "or none"]);
    let pressure = |value: &str| format!("prefetch:\n  max_memory_pressure: {value}\n");
    for value in ["0.3", "0%", "101%", "much%", "false"] {
        with_root(&pressure(value), WrongUnit, 3, &["not a percentage", "at most 100%, or none"]);
    }
    with_root(&source("purge_age: 30"), WrongUnit, 3, &["without a unit", "30s or 30ms", "or none"]);
    with_root(&source("purge_age: 1h"), OutOfBounds, 3, &["1h is not from 1d to 3650d", "or none"]);
    with_root(&source("purge_age: 20years"), OutOfBounds, 3, &["1d to 3650d"]);
    with_root(&source("backoff: maybe"), WrongType, 3, &["neither true nor false"]);
    with_root(&source("chunk_threshold: 1"), WrongUnit, 3, &["without a unit"]);
    with_root(&source("chunk_threshold: 2TiB"), OutOfBounds, 3, &["above the most allowed, 1TiB"]);
    with_root(&source("chunk_size: 4MB"), OutOfBounds, 3, &["not a multiple of 4KiB"]);
    with_root(&source("chunk_size: 1GiB"), OutOfBounds, 3, &["above the most allowed, 64MiB"]);
}

#[test]
fn where_tiers_are() {
    let at = |path: &str| format!("tiers:\n  - path: {path}\n    capacity: 1GiB\n");
    with_root("tiers:\n  - name: x\n", Missing, 3, &["tiers[0]: this tier has no path", "add `path:"]);
    with_root(&at("cache"), BadTier, 3, &["relative path"]);
    with_root(&at("$TMPDIR/monarch"), BadTier, 3, &["not filled in", "command line"]);
    with_root(
        &at("/scratch/imagenet/cache"),
        Overlap,
        3,
        &["inside the root", "become part of the data set", "beside"],
    );
    with_root(&at("/data/cache"), Overlap, 3, &["inside the root"]);
    with_root(&at("/scratch"), Overlap, 3, &["root /scratch/imagenet lies inside the tier"]);
    with_root(&at("/scratch/cache"), TierOnNetwork, 3, &["(lustre) of the root", "relieve nothing", "df -hT -l"]);
    with_root(&at("/home/me/cache"), TierOnNetwork, 3, &["network file system (nfs4)", "/dev/shm"]);
    with_root(&at("/mnt/gluster/x"), TierOnNetwork, 3, &["fuse.glusterfs"]);
    with_root(&at("/home/me/cache"), TierOnNetwork, 3, &["or set allow_network: true"]);
    let allow = |v: &str| format!("tiers:\n  - path: /mnt/gluster/x\n    capacity: 1GiB\n    allow_network: {v}\n");
    with_root(&allow("false"), TierOnNetwork, 3, &["fuse.glusterfs"]);
    with_root(&allow("perhaps"), WrongType, 5, &["neither true nor false"]);
    with_root(&at("/opt"), BadTier, 3, &["may not write to /opt", "a directory of yours"]);
    with_root(&at("/opt/a/b"), BadTier, 3, &["may not make the directory in /opt"]);
    for (mistyped, missing) in [("/local/nvme/x/y", "/local/nvme/x"), ("/local/nvem/x/y", "/local/nvem")] {
        with_root(&at(mistyped), BadTier, 3, &[&format!("{missing} does not exist"), "create it, or correct the path"]);
    }
    let file = "dataset: { roots: [/data] }\ntiers: [{ path: /scratch/list.txt/x }]\n";
    check(file, BadTier, Some(2), &["/scratch/list.txt is not a directory"]);
}

#[test]
fn a_tier_whose_path_readers_have_no_room_for() {
    let path = format!("/local/nvme/{}", "a".repeat(560));
    with_root(&format!("tiers: [{{ path: {path} }}]\n"), OutOfBounds, 2, &["560 at most are usable", "a shorter path"]);
}

#[test]
fn how_large_tiers_are() {
    let nvme = |rest: &str| format!("tiers:\n  - path: /local/nvme/x\n    {rest}\n");
    with_root(&nvme("capacity: 400"), WrongUnit, 4, &["tiers[0].capacity", "without a unit", "400GiB"]);
    with_root(&nvme("capacity: 50%"), WrongUnit, 4, &["is a share", "write a size"]);
    with_root(&nvme("capacity: 0"), OutOfBounds, 4, &["too small", "1MiB or more"]);
    with_root(&nvme("capacity: 500KiB"), OutOfBounds, 4, &["too small"]);
    with_root(
        &nvme("capacity: 900GiB"),
        TooBig,
        4,
        &["900GiB is more than the file system", "400GiB", "better 360GiB"],
    );
    with_root(&nvme("keep_free: 400GiB"), OutOfBounds, 4, &["leaves nothing", "such as 5%"]);
    with_root(&nvme("keep_free: 100%"), OutOfBounds, 4, &["leaves nothing"]);
    with_root(&nvme("keep_free: 120%"), WrongUnit, 4, &["is not a share"]);
    with_root(&nvme("name: a b"), BadTier, 4, &["cannot be the name of a tier", "letters"]);
    let two = |a: &str, b: &str| format!("tiers:\n  - {a}\n  - {b}\n");
    let nested = two("{ path: /local/nvme/a }", "{ path: /local/nvme/a/b }");
    with_root(&nested, Overlap, 4, &["lie in one another", "beside each other"]);
    let same = two("{ path: /local/nvme/a }", "{ path: /local/nvme/a/ }");
    with_root(&same, Overlap, 4, &["directory of tier tier0 already", "of its own"]);
    let named = two("{ name: a, path: /local/nvme/a }", "{ name: a, path: /local/nvme/b }");
    with_root(&named, Overlap, 4, &["two tiers are called a"]);
    let shm = "tiers:\n  - path: /dev/shm/x\n    capacity: 20GiB\n";
    let mut small = node();
    small.memory.limit = Some(16 << 30);
    let error = load_text(&format!("{ROOTS}{shm}"), &small).unwrap_err();
    assert!(
        error.kind() == TooBig && error.to_string().contains("job's memory, 16GiB: the job would be killed"),
        "{error}"
    );
}

#[test]
fn the_other_sections() {
    with_root(
        "placement: { policy: fifo }\n",
        WrongType,
        2,
        &["no placement policy called `fifo`", "clairvoyant, lru"],
    );
    with_root("placement: { policy: first_epoc }\n", WrongType, 2, &["did you mean first_epoch?"]);
    with_root("prefetch: { enabled: yes }\n", WrongType, 2, &["neither true nor false"]);
    with_root("index: { max_memory: 80GiB }\n", TooBig, 2, &["more than the job's memory, 64GiB"]);
    with_root("index: { max_memory: 100KiB }\n", OutOfBounds, 2, &["1MiB or more"]);
    with_root("index: { max_memory: 5 }\n", WrongUnit, 2, &["without a unit"]);
    with_root("index: { trust: blindly }\n", WrongType, 2, &["one of: verify, frozen"]);
    with_root(
        "index: { file: /scratch/x.idx }\n",
        Missing,
        2,
        &["no saved index /scratch/x.idx", "monarch index build -o"],
    );
    with_root("index: { file: x.idx }\n", WrongType, 2, &["relative path"]);
    with_root("index: { file: /scratch }\n", Missing, 2, &["is a directory, not a saved index"]);
    with_root("index: { scan_threads: 0 }\n", OutOfBounds, 2, &["1 to 256"]);
    with_root("wait: { pickup: 50 }\n", WrongUnit, 2, &["50s or 50ms"]);
    with_root("wait: { pickup: 5s }\n", OutOfBounds, 2, &["pickup is not below stall", "pickup < stall <= max_wait"]);
    with_root("wait: { stall: 10ms }\n", OutOfBounds, 2, &["wait.stall", "pickup is not below stall"]);
    with_root("wait: { max_wait: 1s }\n", OutOfBounds, 2, &["wait.max_wait", "stall is not below max_wait"]);
    with_root("wait: { complete: 2h }\n", OutOfBounds, 2, &["wait.complete", "above the most allowed, 1h"]);
    with_root("wait: { max_wait: 2h }\n", OutOfBounds, 2, &["above the most allowed, 1h"]);
    with_root("runtime_dir: run\n", WrongType, 2, &["runtime_dir", "relative path"]);
    with_root("log: { level: verbose }\n", WrongType, 2, &["no log level called", "info"]);
}

#[test]
fn compression() {
    let ram = "tiers:\n  - { path: /dev/shm, capacity: 1GiB }\n";
    with_root(
        "tiers:\n  - { path: /local/nvme, capacity: 1GiB, compression: lz4 }\n",
        BadTier,
        2 + 1,
        &[
            "tiers[0].compression",
            "no faster tier has room for decoded copies",
            "put a tier without compression before",
        ],
    );
    let below = |with: &str| format!("{ram}  - {{ path: /local/nvme, capacity: 1GiB, {with} }}\n");
    let allowed = ["there is no compression called `gzip`", "none", "lz4", "zstd", "auto"];
    with_root(&below("compression: gzip"), WrongType, 4, &allowed);
    with_root(&below("compression: lz4, min_ratio: 0.5"), OutOfBounds, 4, &["0.5 is not between 1 and 100"]);
    with_root(&below("compression: lz4, min_ratio: much"), WrongType, 4, &["`much` is not a number", "1.2"]);
    with_root(
        &below("compression: lz4, decompression_share: 10%"),
        BadTier,
        4,
        &["this tier has compression itself", "leave it out"],
    );
    with_root(&below("decompression_share: 10%"), BadTier, 4, &["no slower tier has compression"]);
    let twice = "tiers:\n  - { path: /dev/shm, capacity: 1GiB, decompression_share: 2GiB }\n  - { path: /local/nvme, capacity: 1GiB, compression: lz4 }\n";
    with_root(twice, TooBig, 3, &["2GiB is more than the capacity, 1GiB"]);
    for (word, compression) in [("lz4", Compression::Lz4), ("zstd", Compression::Zstd), ("auto", Compression::Auto)] {
        let found = load_text(&format!("{ROOTS}{}", below(&format!("compression: {word}"))), &node()).unwrap().config;
        let [front, tier] = &found.tiers[..] else { panic!("{:?}", found.tiers) };
        assert_eq!((front.decompression_share, tier.decompression_share), (256 << 20, 0));
        assert_eq!((tier.compression, tier.compression.to_string().as_str()), (compression, word));
    }
}

#[test]
fn directories_that_other_users_can_exchange() {
    let probe = || node().dir("/scratch/alice").dir("/shared/project");
    let refused = |yaml: &str, probe: crate::FakeProbe, fragments: &[&str]| {
        let error = load_text(&format!("{ROOTS}{yaml}"), &probe).map(|found| found.config).expect_err(yaml);
        let text = screen(&error);
        assert_eq!(error.kind(), Exposed, "{text}");
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        fragments.iter().for_each(|f| assert!(flat.contains(f), "no `{f}` in:\n{text}"));
    };
    let tier = "tiers: [{ path: /shared/project/me/tier, capacity: 1GiB }]\n";
    refused(
        tier,
        probe().exposed_dir("/shared/project", 0, 0o2775),
        &["/shared/project (owner 0, mode 2775)", "other users", "chmod +t /shared/project"],
    );
    refused(tier, probe().exposed_dir("/shared", 4242, 0o755), &["/shared (owner 4242, mode 0755)", "another user"]);
    refused(
        "runtime_dir: /scratch/alice/run\n",
        probe().exposed_dir("/scratch/alice", 4242, 0o700),
        &["runtime_dir", "/scratch/alice (owner 4242", "/dev/shm"],
    );
    // The default tier goes where it is safe.
    let mut two = probe().exposed_dir("/shared", 4242, 0o777);
    two.disks = vec!["/shared".into(), "/tmp".into()];
    let found = load_text(ROOTS, &two).expect("another place").config;
    assert!(found.tiers[0].path.starts_with("/tmp"), "{:?}", found.tiers);
}
