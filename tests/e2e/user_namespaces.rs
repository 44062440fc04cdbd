//! A job of a user without privileges whose programs run in user and PID namespaces of their own,
//! as rootless containers put them there: Apptainer maps the user to itself, podman to 0, and
//! neither has a number for the supplementary groups. They are the agent's user all the same.

use crate::harness::built;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;

const USER: u32 = 1234;
/// A supplementary group of the user.
const PROJECT: u32 = 2345;
/// `unshare` with the mapping of Apptainer, of podman, of a container with its own processes, and
/// without any.
const NAMESPACES: [&str; 4] =
    ["-U --map-current-user", "-U --map-root-user -m", "-U --map-current-user -m -p -f --mount-proc", "-U"];

/// Directories of the user, and of root.
struct Rootless {
    dir: TempDir,
}

impl Rootless {
    /// `None` where the test cannot become another user, or that user makes no namespaces.
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let w = Self { dir };
        for name in ["own", "own/run", "data"] {
            fs::create_dir(w.path(name)).unwrap();
        }
        let may = rustix::process::geteuid().is_root()
            && ["own", "own/run"].iter().all(|name| chown(w.path(name), Some(USER), Some(USER)).is_ok());
        fs::set_permissions(w.path("own/run"), fs::Permissions::from_mode(0o700)).unwrap();
        let makes = |namespace: &&str| {
            let mut c = w.as_user();
            c.arg("unshare").args(namespace.split(' ')).arg("true").output().is_ok_and(|out| out.status.success())
        };
        let can = may && NAMESPACES.iter().all(makes);
        if !can {
            println!("skipped: needs root, and users who may make namespaces");
        }
        can.then_some(w)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Begins a command of the user with the groups of the user.
    fn as_user(&self) -> Command {
        let mut c = Command::new("setpriv");
        c.args([format!("--reuid={USER}"), format!("--regid={USER}"), format!("--groups={USER},{PROJECT}")]);
        c.current_dir(self.dir.path()).env("HOME", self.path("own")).env("OPENED", OPENED);
        c
    }

    /// Runs a script directly.
    fn direct(&self, script: &str, words: &[&str]) -> Output {
        self.as_user().args(["sh", "-ec", script, "sh"]).args(words).output().unwrap()
    }

    /// Runs it under Monarch.
    fn under(&self, settings: &[&str], script: &str, words: &[&str]) -> Output {
        let mut c = self.as_user();
        c.arg(built("monarch")).arg("run").arg("--tier").arg(format!("{}:64MiB", self.path("own/tier").display()));
        c.arg("--set").arg(format!("runtime_dir={}", self.path("own/run").display()));
        c.args(settings).args(["--", "sh", "-ec", script, "sh"]).args(words).output().unwrap()
    }
}

fn text(of: &[u8]) -> String {
    String::from_utf8_lossy(of).into_owned()
}

/// What a process in a namespace sees of files of the user, of root, and of the group; and the
/// paths of what it has opened.
const LOOK: &str = "
cat data/* > /dev/null
i=0; [ $# -lt 2 ] || until [ $i -gt 100 ] || [ $(find own/tier -type f -path '*/copies/*' 2>/dev/null | wc -l) -ge 3 ]; do
    sleep 0.05; i=$((i+1)); done
unshare $1 sh -ec '
    cat data/own data/roots data/project
    stat -c \"%n %u:%g %a %s\" data/own data/roots data/project data
    find data -printf \"%p %U:%G\\n\" | sort
    perl -e \"$OPENED\" data/roots data/project >&2'";

/// What a program has opened by the names that it is given.
const OPENED: &str =
    "for (@ARGV) { open(my $f, '<', $_) or die \"$!\\n\"; print readlink('/proc/self/fd/' . fileno $f), \"\\n\" }";

#[test]
fn in_user_namespaces_the_agents_user_is_served_and_owners_have_the_kernels_numbers() {
    let Some(w) = Rootless::new() else { return };
    for (name, owner, mode) in
        [("own", (USER, USER), 0o644), ("roots", (0, 0), 0o644), ("project", (0, PROJECT), 0o640)]
    {
        fs::write(w.path("data").join(name), name).unwrap();
        chown(w.path("data").join(name), Some(owner.0), Some(owner.1)).unwrap();
        fs::set_permissions(w.path("data").join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for namespace in NAMESPACES {
        let direct = w.direct(LOOK, &[namespace]);
        let set = "dataset.min_file_age=0s";
        let ours =
            w.under(&["--root", "data", "--set", set, "--set", "prefetch.ahead=all"], LOOK, &[namespace, "staged"]);
        let said = text(&ours.stderr);
        assert!(direct.status.success() && ours.status.success(), "{namespace}: {said}");
        assert_eq!(text(&ours.stdout), text(&direct.stdout), "{namespace}");
        // (A user without a number is not told from the other ones without.)
        let copies = said.lines().filter(|line| line.contains("/copies/")).count();
        assert_eq!(copies, if namespace == "-U" { 0 } else { 2 }, "{namespace}: {said}");
    }
}

/// The kernel tells the agent the groups that the process has, not those that it shows.
#[test]
fn in_a_user_namespace_a_process_without_the_agents_groups_gets_what_the_kernel_allows() {
    let Some(w) = Rootless::new() else { return };
    fs::write(w.path("data/project"), "of the project").unwrap();
    chown(w.path("data/project"), Some(0), Some(PROJECT)).unwrap();
    fs::set_permissions(w.path("data/project"), fs::Permissions::from_mode(0o640)).unwrap();
    let mut job = w.as_user();
    job.arg(built("monarch")).arg("run").arg("--root").arg("data").arg("--tier");
    job.arg(format!("{}:64MiB", w.path("own/tier").display()));
    job.arg("--set").arg(format!("runtime_dir={}", w.path("own/run").display()));
    job.args(["--set", "dataset.min_file_age=0s", "--set", "prefetch.ahead=all", "--", "sh", "-ec"]);
    job.arg("cat data/project; env | grep -E '^(LD_PRELOAD|MONARCH_)' > own/env.new; mv own/env.new own/env; cat");
    job.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    let mut job = job.spawn().unwrap();
    let mut left = 200;
    while !w.path("own/env").exists() && left > 0 {
        std::thread::sleep(Duration::from_millis(50));
        left -= 1;
    }
    let variables = fs::read_to_string(w.path("own/env")).unwrap();
    let groups = |groups: &str| {
        let mut c = Command::new("setpriv");
        c.args([format!("--reuid={USER}"), format!("--regid={USER}")]).arg(groups);
        c.arg("unshare").args(["-U", "--map-current-user"]).args(["env"]).args(variables.lines());
        c.args(["perl", "-e", OPENED, "data/project"]).current_dir(w.dir.path());
        let ended = c.output().unwrap();
        (ended.status.success(), text(&ended.stdout) + &text(&ended.stderr))
    };
    let (all, none) = (groups(&format!("--groups={USER},{PROJECT}")), groups("--clear-groups"));
    // As many as the agent has, which look alike there.
    let others = groups(&format!("--groups={USER},{}", PROJECT + 1));
    let sockets = fs::read_dir(w.path("own/run").join(format!("monarch-{USER}"))).unwrap().flatten();
    let sockets: Vec<PathBuf> = sockets.map(|dir| dir.path().join("credentials")).filter(|at| at.exists()).collect();
    assert_eq!(sockets.len(), 1, "{sockets:?}");
    fs::remove_file(&sockets[0]).unwrap();
    let unknown = groups("--clear-groups");
    drop(job.stdin.take());
    assert!(job.wait().unwrap().success());
    assert!(all.0 && all.1.contains("/copies/"), "{all:?}");
    for denied in [none, others, unknown] {
        assert!(!denied.0 && denied.1.contains("Permission denied"), "{denied:?}");
    }
}

/// Changes of pending and of published files, in a directory of the user and in one of a project,
/// whose files get its group.
const CHANGE: &str = "
cd out
for dir in own project; do
    for name in a b c d e; do echo before > $dir/$name; done
done
[ $# -lt 2 ] || sleep 1
head -c 2000000 /dev/zero > blob
for dir in own project; do
    for name in f g h i j; do echo pending > $dir/$name; done
done
unshare $1 sh -ec '
    for dir in own project; do
        cd $dir
        ls; cat f
        echo new > new; echo over > a; echo over > f; echo more >> b; echo more >> g
        chmod 600 c h; rm d i; mv e e2; mv j j2; ln -s new l; mkdir sub; echo deep > sub/x
        : > empty; : > empty; echo twice > empty
        perl -e \"open F, q(>), q(owned); print F 1; print chown(\\$<, -1, *F), chown(\\$<, -1, q(h)), qq(.)\"
        for name in *; do stat -c \"%n %u %a %s\" $name; done
        cat new a f b g l sub/x empty
        cd ..
    done'
for dir in own project; do ls $dir; cat $dir/a $dir/f $dir/b $dir/g $dir/empty; done";

fn tree(of: &Path) -> String {
    let listing = "find . ! -name '.monarch*' -printf '%P %y %m %U:%G %n %l\\n' | sort; \
                   find . -type f ! -name blob ! -name '.monarch*' | sort | xargs grep -H .";
    text(&Command::new("sh").args(["-c", listing]).current_dir(of).output().unwrap().stdout)
}

#[test]
fn in_user_namespaces_what_is_pending_is_seen_and_changed_as_directly() {
    let Some(w) = Rootless::new() else { return };
    let make = || {
        for (name, group, mode) in [("out", USER, 0o755), ("out/own", USER, 0o755), ("out/project", PROJECT, 0o2770)] {
            fs::create_dir(w.path(name)).unwrap();
            chown(w.path(name), Some(USER), Some(group)).unwrap();
            fs::set_permissions(w.path(name), fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    for namespace in NAMESPACES {
        make();
        let direct = w.direct(CHANGE, &[namespace]);
        let expected = tree(&w.path("out"));
        fs::remove_dir_all(w.path("out")).unwrap();
        make();
        // What stands behind the blob is pending for two seconds.
        let ours =
            w.under(&["--output", "out", "--set", "drain.bandwidth_limit=1MiB/s"], CHANGE, &[namespace, "staged"]);
        let said = text(&ours.stderr);
        assert!(direct.status.success(), "{namespace}: {}", text(&direct.stderr));
        assert!(ours.status.success() && said.contains(" published"), "{namespace}: {said}");
        assert_eq!(text(&ours.stdout), text(&direct.stdout), "{namespace}: {said}");
        assert_eq!(tree(&w.path("out")), expected, "{namespace}: {said}");
        fs::remove_dir_all(w.path("out")).unwrap();
    }
}
