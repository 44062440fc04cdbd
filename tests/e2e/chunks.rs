//! Large files: served in chunks while their copies are being made.

use crate::faults::{MIB, du, kill, wait_for};
use crate::harness::{Job, Plan, Running, World, assert_same};
use monarch_abi::chunks::{Large, present_words_of};
use monarch_abi::state::StateHeader;
use slowfs::{FaultKind, FaultSpec, Op};
use std::fs;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const FILE_BYTES: [u64; 3] = [5_000_000, 3_000_001, 2_097_152];
/// Ways to read by functions that the shim hooks, in parts, or past it once all chunks are there.
const WAYS: &str = "mapped,stdio,stream,sent,seq,read,whole,random,vector,seek,buffered,threads,shared,dup,passed,odd";

fn make(sizes: &[u64]) -> Job {
    let sizes = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    Job::new("python3").arg(crate::harness::sources().join("large.py")).args(["make", "--sizes", &sizes])
}

/// A world in which every file above 64 KiB is large, with timeouts that a busy machine does not
/// reach.
fn plan(sizes: &[u64]) -> Plan {
    let plan = World::plan().made_by(make(sizes)).set("source.chunk_threshold=64KiB").set("source.chunk_size=256KiB");
    plan.patient()
}

fn reads(w: &World, how: &str) -> Job {
    w.python("large.py").args(["read", "--how", how]).arg(w.root()).arg(w.backing())
}

/// A job that has begun, after the index was ready.
fn begun(w: &World, job: &Job) -> Running {
    w.pfs().reset().unwrap();
    w.start_indexed(job)
}

fn bytes(w: &World) -> u64 {
    w.pfs().counters().unwrap().bytes_read
}

#[test]
fn every_way_of_reading_is_right_while_chunks_arrive_and_after() {
    let ms = Duration::from_millis(1);
    for prefetch in ["true", "false"] {
        let w = plan(&FILE_BYTES).pfs(move |b| b.data_latency(ms)).set(&format!("prefetch.enabled={prefetch}")).build();
        let all = reads(
            &w,
            "seq,read,whole,random,vector,seek,buffered,mapped,stdio,stream,sent,threads,shared,dup,passed,odd,hints",
        );
        let bare = w.bare(&all).good();
        let ours = begun(&w, &all.clone().args(["--times", "2"])).end().good().text();
        assert_eq!(ours, format!("ready\n{0}{0}", bare.text()));
    }
}

#[test]
fn each_way_alone_takes_each_byte_from_the_pfs_once() {
    for how in WAYS.split(',') {
        let w = plan(&FILE_BYTES).set("prefetch.enabled=false").set("wait.complete=20s").build();
        begun(&w, &reads(&w, how).args(["--times", "2"])).end().good();
        let (got, all) = (bytes(&w), FILE_BYTES.iter().sum::<u64>());
        let part = ["random", "seek", "buffered", "vector", "odd"].contains(&how);
        assert!(got == all || (part && got <= all), "{how}: {got} of {all}");
    }
}

#[test]
fn eight_readers_take_each_byte_once_and_later_none() {
    let ms = Duration::from_millis(2);
    for prefetch in ["true", "false"] {
        let setting = format!("prefetch.enabled={prefetch}");
        let mut w = plan(&[9_000_000, 4_000_000]).pfs(move |b| b.data_latency(ms)).set(&setting).build();
        let script = "for i in 1 2 3 4 5 6 7 8; do python3 \"$@\" --seed $i & done; wait";
        let words: Vec<_> = reads(&w, "seq,random,threads").words()[1..].to_vec();
        let job = Job::new("sh").args(["-c", script, "sh"]).args(words);
        let text = begun(&w, &job).end().good().text();
        assert_eq!(text.matches(" right").count(), 24, "{text}");
        assert_eq!(bytes(&w), 13_000_000, "{prefetch}");
        w.keep();
        w.pfs().reset().unwrap();
        w.run(&job).good();
        let c = w.pfs().counters().unwrap();
        assert_eq!((c.opens(), c.get(Op::Read)), (0, 0));
    }
}

#[test]
fn tools_see_the_same_with_and_without_the_shim() {
    let w = plan(&FILE_BYTES).pfs(|b| b.data_latency(Duration::from_millis(1))).build();
    let script = r#"cd "$1"; for f in l*.bin; do
        sha256sum $f; tail -c 1000 $f | md5sum; head -c 70000 $f | md5sum; wc -c < $f; cat $f | md5sum
        dd if=$f bs=100k 2>/dev/null | md5sum; dd if=$f bs=1k skip=700 count=77 2>/dev/null | md5sum
        dd if=$f bs=1M iflag=skip_bytes,count_bytes skip=12345 count=234567 2>/dev/null | md5sum
        cmp $f "$2/$f" && echo same; tar cf - $f | tar xOf - | md5sum; { head -c 10 >/dev/null; cat; } < $f | md5sum
        done"#;
    let job = Job::new("bash").args(["-c", script, "bash"]).arg(w.root()).arg(w.backing());
    assert_same(&w.bare(&job).good(), &w.same(&job));
}

#[test]
fn a_reader_that_jumps_gets_the_chunks_that_it_touches() {
    let w = plan(&[8 << 20]).set("prefetch.enabled=false").build();
    let script = "import os,sys; f=os.open(sys.argv[1]+'/l0.bin',0)\nfor c in (3,9,30): os.pread(f,512,c*262144+77)";
    begun(&w, &Job::new("python3").args(["-c", script]).arg(w.root())).end().good();
    assert_eq!(bytes(&w), 3 * 262_144);
}

#[test]
fn a_tier_on_disk_takes_chunks_and_streams_as_one_in_memory() {
    let disk = tempfile::tempdir().unwrap();
    let w = plan(&FILE_BYTES).tier_dir(disk.path().join("whole")).set("wait.complete=20s").build();
    begun(&w, &reads(&w, "seq,random,shared,mapped").args(["--times", "2"])).end().good();
    assert_eq!(bytes(&w), FILE_BYTES.iter().sum::<u64>());
    let w = plan(&[24 * MIB]).tier_dir(disk.path().join("part")).tier_size("10MiB").build();
    begun(&w, &reads(&w, "seq,read,random")).end().good();
    assert!(du(w.tier()) <= 10 * MIB, "{}", du(w.tier()));
}

#[test]
fn a_tier_that_an_earlier_job_filled_has_a_window_all_the_same() {
    let disk = tempfile::tempdir().unwrap();
    // Small enough that hardly any room of the tier is left.
    let sizes: Vec<u64> = [[2 * MIB; 8].to_vec(), [130_000; 40].to_vec()].concat();
    let w = plan(&sizes).tier_dir(disk.path().join("tier")).tier_size("12MiB").build();
    // The agent is queried and stopped while the job keeps it alive: later it may have ended by
    // itself.
    let script = "\"$@\" && echo over; read -r line; true";
    let job = |options: &[&str]| {
        let job = Job::new("sh").args(["-c", script, "sh"]).args(reads(&w, "seq").words());
        options.iter().fold(job, Job::option)
    };
    let read = |options: &[&str], so: &dyn Fn()| {
        let mut running = begun(&w, &job(options));
        running.until_written("over");
        so();
        let out = w.monarch("stop").output().unwrap();
        assert!(out.status.success(), "{out:?}");
        running.end().good();
    };
    read(&["--set=source.chunk_threshold=1GiB"], &|| {
        w.until("a full tier", |s| s.tiers[0].capacity - s.tiers[0].used < 200_000);
    });
    wait_for("the agent's end", || w.agent().is_none());
    read(&[], &|| {
        assert!(w.agent().is_some_and(|s| s.agent["chunks_copied"] > 0), "{}", w.log());
        assert!(du(w.tier()) <= 12 * MIB, "{}", du(w.tier()));
    });
}

#[test]
fn without_large_files_reads_ask_the_kernel_nothing() {
    if !crate::harness::has_command("strace") {
        return;
    }
    let w = plan(&[5000]).build();
    let script = "import os,sys; f=os.open(sys.argv[1]+'/l0.bin',0); os.read(f,10); r,w=os.pipe(); os.write(w,b'x'); os.read(r,1)";
    let job = Job::new("strace").args(["-f", "-e", "trace=statx", "python3", "-c", script]).arg(w.root());
    let errors = begun(&w, &job).end().good().errors();
    assert!(
        !errors.contains("AT_EMPTY_PATH|AT_STATX_DONT_SYNC") && !errors.contains("AT_STATX_DONT_SYNC|AT_EMPTY_PATH"),
        "{errors}"
    );
}

#[test]
fn a_hint_fetches_what_it_names() {
    let w = plan(&[8 << 20]).set("prefetch.enabled=false").build();
    let script = "import os,sys,time; f=os.open(sys.argv[1]+'/l0.bin',0)\n\
        os.posix_fadvise(f,262144,1<<20,os.POSIX_FADV_WILLNEED)\ntime.sleep(3)";
    let running = begun(&w, &Job::new("python3").args(["-c", script]).arg(w.root()));
    wait_for("four chunks", || bytes(&w) == 1 << 20);
    running.end().good();
    assert_eq!(bytes(&w), 1 << 20);
}

#[test]
fn a_file_larger_than_the_tier_is_streamed_and_its_part_stays() {
    let size = 24 * MIB;
    let mut w = plan(&[size]).tier_size("10MiB").build();
    w.keep();
    let job = reads(&w, "seq");
    begun(&w, &job).end().good();
    let first = bytes(&w);
    assert!((size..=size + size / 20).contains(&first), "{first} of {size}");
    assert!(du(w.tier()) <= 10 * MIB, "{}", du(w.tier()));
    begun(&w, &job).end().good();
    let second = bytes(&w);
    assert!(second < size * 3 / 4, "{second} of {size}: a part is kept");
    let calls = w.pfs().counters().unwrap().get(Op::Read);
    assert!(calls <= 24 * 4 * 2, "{calls} reads");
    begun(&w, &reads(&w, "random,read,vector,shared,odd")).end().good();
    assert!(du(w.tier()) <= 10 * MIB, "{}", du(w.tier()));
}

#[test]
fn files_that_find_no_room_are_streamed_in_large_requests() {
    let mut w = plan(&[6 * MIB; 4]).tier_size("12MiB").build();
    w.keep();
    w.until("a full tier", |s| s.roots.iter().all(|r| r.state == "ready") && s.tiers[0].files > 0);
    wait_for("the end of the prefetch", || {
        let before = bytes(&w);
        std::thread::sleep(Duration::from_millis(300));
        bytes(&w) == before
    });
    let job = reads(&w, "seq");
    begun(&w, &job).end().good();
    let c = w.pfs().counters().unwrap();
    assert!(c.bytes_read < 24 * MIB, "{c:?}");
    assert!(c.get(Op::Read) <= 24 * 5, "{c:?}");
    assert!(du(w.tier()) <= 12 * MIB, "{}", du(w.tier()));
}

#[test]
fn file_after_file_that_finds_no_room_is_streamed() {
    let mut w = plan(&[MIB; 40]).tier_size("18MiB").build();
    w.keep();
    let job = reads(&w, "read");
    begun(&w, &job).end().good();
    begun(&w, &job).end().good();
    let c = w.pfs().counters().unwrap();
    assert!(c.bytes_read > 15 * MIB, "{c:?}: most of them find room");
    // The job reads in pieces of 100 KB.
    assert!(c.bytes_read > 180_000 * c.get(Op::Read), "{c:?}: few are streamed");
    assert!(c.bytes_read < 25 * MIB, "{c:?}: some come twice");
    assert!(du(w.tier()) <= 18 * MIB, "{}", du(w.tier()));
}

#[test]
fn four_readers_side_by_side_of_files_that_find_no_room() {
    let mut w = plan(&[MIB; 40]).set("source.chunk_size=64KiB").tier_size("18MiB").build();
    w.keep();
    let script = "import hashlib,os,sys,threading\n\
        names = sorted(os.listdir(sys.argv[1]))\n\
        sums = {}\n\
        def read(part):\n\
        \x20 for name in names[part::4]:\n\
        \x20   f, h = os.open(sys.argv[1] + '/' + name, 0), hashlib.blake2b()\n\
        \x20   while got := os.read(f, 16_001): h.update(got)\n\
        \x20   os.close(f)\n\
        \x20   sums[name] = h.hexdigest()\n\
        parts = [threading.Thread(target=read, args=(part,)) for part in range(4)]\n\
        [p.start() for p in parts]; [p.join() for p in parts]\n\
        print(sorted(sums.items()))";
    let job = Job::new("python3").args(["-c", script]).arg(w.root());
    let bare = w.same(&job).text();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    assert_eq!(w.run(&job).good().text(), bare);
    w.pfs().reset().unwrap();
    assert_eq!(w.run(&job).good().text(), bare);
    let c = w.pfs().counters().unwrap();
    assert!(c.bytes_read > 15 * MIB && c.bytes_read < 26 * MIB, "{c:?}");
    assert!(c.bytes_read > 45_000 * c.get(Op::Read), "{c:?}: few are streamed");
}

#[test]
fn a_sparse_file_of_three_gigabytes() {
    let w = plan(&[100_000]).tier_size("64MiB").build();
    let file = fs::File::create(w.backing().join("l9.bin")).unwrap();
    file.set_len(3 << 30).unwrap();
    for at in [0, 1 << 30, (3 << 30) - 70_000] {
        file.write_all_at(&vec![7; 70_000], at).unwrap();
    }
    drop(file);
    let script = "import os,sys,hashlib; f=os.open(sys.argv[1]+'/l9.bin',0); h=hashlib.blake2b()\n\
        for off in (0,5<<20,(1<<30)-50,(1<<30)+69990,(2<<30)+7,(3<<30)-70001,(3<<30)-10): h.update(os.pread(f,100000,off))\n\
        print(h.hexdigest(), os.fstat(f).st_size)";
    w.same(&Job::new("python3").args(["-c", script]).arg(w.root()));
    assert!(du(w.tier()) <= 64 * MIB);
}

#[test]
fn chunks_that_are_evicted_under_their_readers() {
    let mut w = plan(&FILE_BYTES).set("prefetch.enabled=false").build();
    w.keep();
    let running = begun(&w, &reads(&w, "seq,random,threads,read,shared,vector").args(["--times", "6"]));
    let mut evictions = 0;
    while running.written().lines().count() < 37 {
        let out = w.monarch("evict").args(w.words()).arg("--").arg(w.root()).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        evictions += 1;
        std::thread::sleep(Duration::from_millis(20));
        assert!(!running.written().contains("FAIL"), "{}", running.written());
    }
    running.end().good();
    assert!(evictions > 5, "{evictions}");
    w.until("nothing is left over", |_| du(&w.copies().join("../part")) <= 3 * 6 * MIB);
}

#[test]
fn an_agent_killed_with_chunks_in_flight() {
    let ms = Duration::from_millis(20);
    let mut w = plan(&[9_000_000, 5_000_000]).pfs(move |b| b.data_latency(ms)).set("wait.pickup=100ms").build();
    w.keep();
    for _ in 0..4 {
        let running = begun(&w, &reads(&w, "seq,random,threads,shared"));
        std::thread::sleep(Duration::from_millis(60));
        if let Some(agent) = w.agent() {
            kill(agent.pid as i32, libc::SIGKILL);
        }
        let text = running.end().good().text();
        assert_eq!(text.matches(" right").count(), 4, "{text}");
        let _ = w.monarch("evict").args(w.words()).arg("--").arg(w.root()).output();
    }
}

#[test]
fn a_reader_sees_what_the_job_writes_into_a_file_under_way() {
    // A complete copy that is open keeps the old version (SEMANTICS).
    let ms = Duration::from_millis(5);
    let w = plan(&[9_000_000]).pfs(move |b| b.data_latency(ms)).set("prefetch.enabled=false").build();
    let script = "import os,sys; p=sys.argv[1]+'/l0.bin'; f=os.open(p,0); a=os.pread(f,1000,300000)\n\
        g=os.open(p,os.O_WRONLY); os.pwrite(g,b'new'*1000,300100)\n\
        b=os.pread(f,3000,300100); assert b==b'new'*1000, b[:30]\n\
        assert os.pread(f,100,300000)==a[:100]\nc=os.pread(f,300000,200000); assert c[100100:103100]==b'new'*1000\nprint('right')";
    let ours = begun(&w, &Job::new("python3").args(["-c", script]).arg(w.root())).end();
    assert!(ours.good().text().ends_with("right\n"));
}

#[test]
fn a_file_replaced_on_the_pfs_is_not_mixed() {
    let ms = Duration::from_millis(5);
    let mut w = plan(&[9_000_000])
        .set("prefetch.enabled=false")
        .pfs(move |b| b.data_latency(ms).attr_ttl(Duration::ZERO))
        .build();
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    // Same size and time, another inode.
    let (old, new) = (w.backing().join("l0.bin"), w.backing().join("new"));
    let times = fs::metadata(&old).unwrap().modified().unwrap();
    fs::write(&new, vec![9; 9_000_000]).unwrap();
    fs::File::options().write(true).open(&new).unwrap().set_modified(times).unwrap();
    fs::rename(&new, &old).unwrap();
    w.run(&reads(&w, "seq,random,read")).good();
}

#[test]
fn errors_of_the_pfs_are_the_readers_only_if_they_last() {
    let w = plan(&[4_000_000]).set("prefetch.enabled=false").build();
    let job = reads(&w, "seq,random");
    let mut running = w.start(&job.announced());
    running.until_written("ready");
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    w.pfs().fault(FaultSpec::new(FaultKind::Errno(5)).ops(&[Op::Read]).after(3).count(2)).unwrap();
    running.begin();
    running.end().good();
    let w = plan(&[4_000_000]).build();
    w.pfs().fault(FaultSpec::new(FaultKind::Errno(5)).ops(&[Op::Read])).unwrap();
    let script = "import os,sys; f=os.open(sys.argv[1]+'/l0.bin',0)\ntry: os.read(f,100000)\n\
        except OSError as e: print(e.errno, os.lseek(f,0,1))";
    let ended = w.same(&Job::new("python3").args(["-c", script]).arg(w.root()));
    assert_eq!(ended.good().text(), "5 0\n");
}

#[test]
fn a_map_of_a_huge_file_on_a_slow_pfs_starts_at_once() {
    let w = plan(&[100_000]).pfs(|b| b.bandwidth(20 << 20)).build();
    fs::File::create(w.backing().join("l8.bin")).unwrap().set_len(4 << 30).unwrap();
    let script = "import mmap,os,sys,time; t=time.time(); f=os.open(sys.argv[1]+'/l8.bin',0)\n\
        m=mmap.mmap(f,0,prot=mmap.PROT_READ); assert m[5<<20]==0 and len(m)==4<<30\nprint(time.time()-t)";
    let took = begun(&w, &Job::new("python3").args(["-c", script]).arg(w.root())).end().good().text();
    let took: f64 = took.lines().last().unwrap().parse().unwrap();
    assert!(took < 10.0, "{took} s");
}

#[test]
fn a_map_of_a_file_that_is_nearly_there_is_of_the_copy() {
    let w = plan(&[6_000_000]).pfs(|b| b.data_latency(Duration::from_millis(5))).set("wait.complete=20s").build();
    let script = "import mmap,os,sys; f=os.open(sys.argv[1]+'/l0.bin',0); m=mmap.mmap(f,0,prot=mmap.PROT_READ)\n\
        print([l.split()[-1] for l in open('/proc/self/maps') if 'l0.bin' in l or '/copies/' in l])";
    let text = begun(&w, &Job::new("python3").args(["-c", script]).arg(w.root())).end().good().text();
    assert!(text.contains("/copies/"), "{text}");
    assert_eq!(bytes(&w), 6_000_000);
}

#[test]
fn a_partial_copy_is_completed_without_readers_and_explain_reports_it() {
    let mut w = plan(&[9_000_000]).build();
    // After some chunks the PFS stalls until `explain` has run.
    w.pfs().fault(FaultSpec::new(FaultKind::STALL).ops(&[Op::Read]).after(8)).unwrap();
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    let explain = || {
        let out = w.monarch("explain").args(w.words()).arg("--").arg(w.root().join("l0.bin")).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    wait_for("some chunks", || explain().contains(" of 35 chunks are there"));
    w.pfs().clear().unwrap();
    w.until("the copy", |s| s.tiers[0].files == 1);
    assert!(explain().contains("hit"), "{}", explain());
    assert_eq!(bytes(&w), 9_000_000);
}

/// The state file of a running agent's only root, opened for writing as by any process of the job.
struct State(fs::File);

impl State {
    fn of(w: &World) -> Self {
        let dir = fs::read_dir(w.agent().expect("an agent").runtime_dir).unwrap();
        let path = dir.map(|e| e.unwrap().path()).find(|p| p.extension().is_some_and(|e| e == "st"));
        Self(fs::File::options().read(true).write(true).open(path.expect("a state file")).unwrap())
    }
    fn u64(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    }
    /// Where the words of present chunks of each large file begin, and how many there are.
    fn bitmaps(&self) -> Vec<(u64, u64)> {
        let header = |field: usize| self.u64(field as u64);
        let (large, chunks) = (header(offset_of!(StateHeader, large_off)), header(offset_of!(StateHeader, chunks_off)));
        let of = |n: u64| {
            let head = large + n * size_of::<Large>() as u64;
            let count = self.u64(head + offset_of!(Large, chunks) as u64) as u32;
            (chunks + 8 * self.u64(head + offset_of!(Large, bits) as u64), present_words_of(count) as u64)
        };
        (0..header(offset_of!(StateHeader, large))).map(of).collect()
    }
    fn change(&self, at: u64, to: impl Fn(u64) -> u64) {
        self.0.write_all_at(&to(self.u64(at)).to_le_bytes(), at).unwrap();
    }
}

/// A change of a word.
type Flip = fn(u64) -> u64;

const FLIPS: [(&str, Flip); 8] = [
    ("the lowest bit", |w| w ^ 1),
    ("a bit in the middle", |w| w ^ 1 << 9),
    ("another", |w| w ^ 1 << 17),
    ("the highest bit", |w| w ^ 1 << 63),
    ("all of the lower half", |w| w | 0xffff_ffff),
    ("all bits", |_| u64::MAX),
    ("each bit", |w| !w),
    ("what was there", |_| 0),
];

/// A flipped bit gave 256 KiB of zeros: the hole in the partial copy was served as data.
#[test]
fn flipped_bits_of_present_chunks_never_show_a_reader_a_hole() {
    let size = 9_000_000;
    let w = plan(&[size; FLIPS.len()]).set("prefetch.enabled=false").build();
    // One chunk of each file is there when the bits are flipped; then all is read.
    let script = "import hashlib,os,sys\n\
        names = sorted(os.listdir(sys.argv[1]))\n\
        files = [os.open(sys.argv[1] + '/' + name, 0) for name in names]\n\
        for f in files: os.pread(f, 100, 3 * 262144)\n\
        print('open', flush=True)\n\
        sys.stdin.readline()\n\
        for name, f in zip(names, files):\n\
        \x20 h = hashlib.blake2b()\n\
        \x20 for at in range(0, os.fstat(f).st_size, 100_000): h.update(os.pread(f, 100_000, at))\n\
        \x20 print(name, h.hexdigest(), flush=True)";
    let job = Job::new("python3").args(["-c", script]).arg(w.root());
    let bare = w.bare(&job).good();
    let mut running = begun(&w, &job);
    running.until_written("open");
    let state = State::of(&w);
    let bitmaps = state.bitmaps();
    assert!(bitmaps.len() == FLIPS.len() && bitmaps.iter().all(|(_, words)| *words == 2), "{bitmaps:?}");
    for ((at, words), (_, flip)) in bitmaps.iter().zip(FLIPS) {
        assert_eq!(state.u64(*at) as u32, 1 << 3, "one chunk is there");
        (0..*words).for_each(|word| state.change(at + 8 * word, flip));
    }
    running.write(b"\n");
    let ours = running.end().good().text();
    assert_eq!(ours, format!("ready\n{}", bare.text()), "{:?}", FLIPS.map(|(what, _)| what));
    assert_eq!(bytes(&w), size * FLIPS.len() as u64, "what the agent has is not fetched again");
}

#[test]
fn bits_that_are_flipped_while_a_job_reads_cost_no_byte() {
    let size = 9_000_000;
    // A reader that waits for a chunk whose bit is flipped again soon reads the PFS.
    let w = plan(&[size; 3]).set("prefetch.enabled=false").set("wait.stall=100ms").set("wait.pickup=50ms").build();
    let script = "import hashlib,os,sys,random\n\
        files = {n: os.open(sys.argv[1] + '/' + n, 0) for n in sorted(os.listdir(sys.argv[1]))}\n\
        same = {n: open(sys.argv[2] + '/' + n, 'rb').read() for n in files}\n\
        r, wrong = random.Random(7), 0\n\
        for turn in range(6000):\n\
        \x20 n = r.choice(list(files)); at = r.randrange(9_000_000)\n\
        \x20 wrong += os.pread(files[n], 70_000, at) != same[n][at:at + 70_000]\n\
        \x20 if turn == 10: print('reading', flush=True)\n\
        print('wrong:', wrong)";
    let mut running = begun(&w, &Job::new("python3").args(["-c", script]).arg(w.root()).arg(w.backing()));
    running.until_written("reading");
    let state = State::of(&w);
    let bitmaps = state.bitmaps();
    let mut flips = 0u64;
    while !running.written().contains("wrong:") {
        flips += 1;
        let n = flips.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (at, words) = bitmaps[n as usize % bitmaps.len()];
        state.change(at + 8 * ((n >> 8) % words), |w| w ^ 1 << (n >> 58));
        std::thread::sleep(Duration::from_micros(300));
    }
    assert!(running.end().good().text().ends_with("wrong: 0\n") && flips > 20, "{flips}");
}
