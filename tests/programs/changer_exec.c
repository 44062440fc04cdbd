/* changer: the same changes made by other programs, started with and without a shell. */
#include "changer.h"
#include <spawn.h>
#include <sys/wait.h>

/* Runs a shell command with $1 = the operation's directory. */
static bool sh(const char *command)
{
    char *argv[] = {(char *)"sh", (char *)"-c", (char *)(uintptr_t)command, (char *)"sh", (char *)(uintptr_t)act(""), NULL};
    pid_t pid;
    int status;
    if (posix_spawnp(&pid, "sh", NULL, NULL, argv, environ)) return false;
    return waitpid(pid, &status, 0) == pid && status == 0;
}

static void want_echoed(const char *name, const char *content_of)
{
    size_t n;
    char *old = old_bytes(content_of, &n), *p = malloc(n + 2);
    memcpy(p, old, n);
    memcpy(p + n, "x\n", 2);
    want_bytes(name, p, n + 2);
    free(old);
    free(p);
}

#define OP(name) static const char *name(void)
OP(sh_append) { CHECK(sh("echo x >> \"$1/a\"")); want_echoed("a", "a"); return NULL; }
OP(sh_replace) { CHECK(sh("echo x > \"$1/a\"; echo y > \"$1/new\"")); want_bytes("a", "x\n", 2); want_bytes("new", "y\n", 2); return NULL; }
OP(sh_cd_append) { CHECK(sh("cd \"$1/d\" && echo x >> x && echo x >> ../a")); want_echoed("d/x", "d/x"); want_echoed("a", "a"); return NULL; }
OP(cp_over) { CHECK(sh("cp \"$1/b\" \"$1/a\"")); want_old("a", "b"); return NULL; }
OP(cp_archive) { CHECK(sh("cp -a \"$1/d\" \"$1/d2\"")); want_old("d2/x", "d/x"); want_dir("d2"); return NULL; }
OP(mv_over) { CHECK(sh("mv \"$1/a\" \"$1/b\"")); want_old("b", "a"); want_absent("a"); return NULL; }
OP(mv_dir) { CHECK(sh("mv \"$1/d\" \"$1/e\"")); want_old("e/d/x", "d/x"); want_absent("d"); return NULL; }
OP(rm_tree) { CHECK(sh("rm -r \"$1/d\"; rm \"$1/a\"")); want_absent("d"); want_absent("d/x"); want_absent("a"); return NULL; }
OP(mkdir_touch) { CHECK(sh("mkdir -p \"$1/p/q\"; touch \"$1/p/q/f\" \"$1/a\"; chmod 600 \"$1/b\"")); want_bytes("p/q/f", "", 0); want_dir("p/q"); want_old("b", "b"); want_old("a", "a"); return NULL; }
OP(ln_both) { CHECK(sh("ln \"$1/a\" \"$1/hard\"; ln -sf b \"$1/c\"")); want_old("hard", "a"); want_link("c", "b"); want_old("a", "a"); return NULL; }
OP(dd_middle) { CHECK(sh("printf x | dd of=\"$1/a\" bs=1 seek=3000 conv=notrunc 2>/dev/null; echo >> \"$1/a\"")); want_any("a"); return NULL; }
OP(sed_in_place) { CHECK(sh("echo old > \"$1/a\"; sed -i s/old/new/ \"$1/a\"")); want_bytes("a", "new\n", 4); return NULL; }
OP(truncate_tool) { CHECK(sh("truncate -s 0 \"$1/a\"")); want_bytes("a", "", 0); return NULL; }
OP(tar_extract) { CHECK(sh("tar -C \"$1\" -cf - d | tar -C \"$1/e\" -xf -")); want_old("e/d/x", "d/x"); want_old("d/x", "d/x"); return NULL; }
OP(python_write)
{
    if (!sh("command -v python3 >/dev/null")) SKIP("no python3");
    CHECK(sh("python3 -c 'import sys; open(sys.argv[1] + \"/a\", \"w\").write(\"py\")' \"$1\""));
    want_bytes("a", "py", 2);
    return NULL;
}
OP(python_replace)
{
    if (!sh("command -v python3 >/dev/null")) SKIP("no python3");
    CHECK(sh("python3 -c 'import sys, os; d = sys.argv[1]; os.replace(d + \"/a\", d + \"/b\")' \"$1\""));
    want_old("b", "a");
    want_absent("a");
    return NULL;
}
#define O(n) {#n, n}
const struct op ops_exec[] = {
    O(sh_append), O(sh_replace), O(sh_cd_append), O(cp_over), O(cp_archive), O(mv_over), O(mv_dir), O(rm_tree), O(mkdir_touch), O(ln_both),
    O(dd_middle), O(sed_in_place), O(truncate_tool), O(tar_extract), O(python_write), O(python_replace),
};
const int ops_exec_count = sizeof ops_exec / sizeof *ops_exec;
