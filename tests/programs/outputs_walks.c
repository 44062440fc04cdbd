/* Walks inside the C library over a tree that is pending: `outputs-walks [--no-barriers]` in the
 * directory where it goes. What is visited is printed in order of names. `--no-barriers` leaves out
 * what waits until all is published. */
#include "common.h"
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <wordexp.h>

static void must(int good, const char *what)
{
    if (good) return;
    printf("FAIL %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(9);
}
static void put(const char *name, const char *text)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0, name);
}

/* What was visited, a line each. */
static char *lines[1000];
static int count;
static void __attribute__((format(printf, 1, 2))) line(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    must(count < 1000 && vasprintf(&lines[count++], format, ap) >= 0, "too much");
    va_end(ap);
}
static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
static void tell(const char *what, int result)
{
    qsort(lines, (size_t)count, sizeof *lines, by_text);
    printf("%s: %d, %d lines\n", what, result, count);
    for (int n = 0; n < count; n++) { puts(lines[n]); free(lines[n]); }
    count = 0;
    fflush(stdout);
}

static const char *const KIND[] = {"F", "D", "DNR", "NS", "SL", "DP", "SLN"};
static int flags_now;
static int actions(const char *p)
{
    if (!(flags_now & FTW_ACTIONRETVAL)) return strstr(p, "/stop") ? 7 : 0;
    if (strstr(p, "skipped")) return FTW_SKIP_SUBTREE;
    if (strstr(p, "only")) return FTW_SKIP_SIBLINGS;
    return FTW_CONTINUE;
}
static int visit(const char *p, const struct stat *s, int kind, struct FTW *w)
{
    struct stat again;
    // The name leads to the file from where the walk is.
    const char *here = flags_now & FTW_CHDIR ? (p[w->base] ? p + w->base : ".") : p;
    int good = (flags_now & FTW_PHYS ? lstat : stat)(here, &again) == 0 && again.st_ino == s->st_ino;
    line("  %s %s %d %d %o %s", p, KIND[kind], w->base, w->level, kind == FTW_NS ? 0 : s->st_mode,
         good || kind == FTW_SLN ? "" : "ANOTHER");
    return actions(p);
}
static int visit_old(const char *p, const struct stat *s, int kind)
{
    line("  %s %s %o", p, KIND[kind], kind == FTW_NS ? 0 : s->st_mode);
    return 0;
}

static void all_of(const char *top)
{
    static const int flags[] = {0, FTW_PHYS, FTW_DEPTH, FTW_PHYS | FTW_DEPTH, FTW_CHDIR, FTW_CHDIR | FTW_PHYS,
        FTW_CHDIR | FTW_DEPTH, FTW_MOUNT | FTW_PHYS, FTW_ACTIONRETVAL, FTW_ACTIONRETVAL | FTW_PHYS,
        FTW_ACTIONRETVAL | FTW_CHDIR | FTW_DEPTH | FTW_PHYS, 1 << 10};
    char what[200], before[PATH_MAX], after[PATH_MAX];
    for (unsigned f = 0; f < sizeof flags / sizeof *flags; f++)
        // Through links, what is reached twice is visited where the order of names leads first; and
        // with few descriptors the C library goes back from there by "..", to another directory.
        for (int descriptors = (flags[f] & (FTW_CHDIR | FTW_PHYS)) == FTW_CHDIR ? 11 : 0; descriptors < 12 && (flags[f] & FTW_PHYS || strcmp(top, ".")); descriptors += descriptors < 2 ? 1 : 9) {
            flags_now = flags[f];
            must(getcwd(before, sizeof before) != NULL, "getcwd");
            int done = nftw(top, visit, descriptors, flags_now);
            must(getcwd(after, sizeof after) != NULL, "getcwd");
            snprintf(what, sizeof what, "nftw %s %d %d %s%s", top, flags_now, descriptors, done < 0 ? strerrorname_np(errno) : "",
                     strcmp(before, after) ? " IN ANOTHER DIRECTORY" : "");
            tell(what, done);
        }
    if (!strcmp(top, ".")) return;
    int done = ftw(top, visit_old, 3);
    snprintf(what, sizeof what, "ftw %s", top);
    tell(what, done);
}

static int refused(const char *p, int e) { line("  refused %s %d", p, e); return 0; }
static void globs(const char *pattern, int flags)
{
    glob_t g = {.gl_offs = 2};
    char what[200];
    int done = glob(pattern, flags, refused, &g);
    for (size_t n = 0; !done && n < g.gl_pathc; n++) line("  %s", g.gl_pathv[n + (flags & GLOB_DOOFFS ? 2 : 0)]);
    snprintf(what, sizeof what, "glob %s %x %x", pattern, flags, done ? 0 : g.gl_flags & ~GLOB_MAGCHAR);
    if (!done) globfree(&g);
    tell(what, done);
}

static void entries(const char *top, int flags)
{
    char *paths[] = {(char *)top, NULL}, what[200];
    FTS *t = fts_open(paths, flags, NULL);
    if (!t) { printf("fts %s %x: %s\n", top, flags, strerrorname_np(errno)); return; }
    for (FTSENT *e; (e = fts_read(t));) {
        line("  %s %d %d %d %o", e->fts_path, e->fts_info, e->fts_level, e->fts_namelen, flags & FTS_NOSTAT ? 0 : e->fts_statp->st_mode);
        if (e->fts_info == FTS_D && !(flags & FTS_NOSTAT))
            for (FTSENT *c = fts_children(t, 0); c; c = c->fts_link) line("  child %s of %s", c->fts_name, e->fts_path);
    }
    fts_close(t);
    snprintf(what, sizeof what, "fts %s %x", top, flags);
    tell(what, 0);
}

static void expands(const char *words)
{
    wordexp_t w;
    char what[200];
    int done = wordexp(words, &w, 0);
    for (size_t n = 0; !done && n < w.we_wordc; n++) line("  %s", w.we_wordv[n]);
    snprintf(what, sizeof what, "wordexp %s", words);
    tell(what, done);
}

int main(int argc, char **argv)
{
    int barriers = !(argc > 1 && !strcmp(argv[1], "--no-barriers"));
    umask(022);
    const char *dirs[] = {"t", "t/a", "t/a/b", "t/a/b/c", "t/skipped", "t/one", "t/empty", "t/gone", "beside", "beside/d"};
    for (unsigned n = 0; n < sizeof dirs / sizeof *dirs; n++) must(!mkdir(dirs[n], 0755), dirs[n]);
    put("t/old", "published");
    put("t/a/replaced", "old");
    put("t/removed", "gone soon");
    // A link waits until all is published.
    if (barriers) { must(!link("t/old", "t/second"), "link"); must(!unlink("t/second"), "unlink"); }
    const char *files[] = {"t/f1", "t/f2", "t/.dot", "t/a/f1", "t/a/x.pt", "t/a/replaced", "t/a/b/y.pt", "t/a/b/c/deep", "t/skipped/in", "t/one/only", "beside/z.pt", "beside/d/in"};
    for (unsigned n = 0; n < sizeof files / sizeof *files; n++) put(files[n], files[n]);
    must(!unlink("t/removed") && !rmdir("t/gone"), "remove");
    must(!symlink("f1", "t/to_file") && !symlink("../beside", "t/to_dir") && !symlink("nowhere", "t/dangling") && !symlink("..", "t/a/up"), "symlink");
    int writer = open("t/written", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    must(writer >= 0 && write(writer, "half", 4) == 4, "written");
    all_of("t");
    all_of("./t//");
    all_of("t/f1");
    all_of("t/to_dir");
    all_of("t/dangling");
    all_of("t/removed");
    all_of("t/gone");
    all_of(".");
    all_of("");
    put("t/stop", "here");
    flags_now = 0;
    int done = nftw("t", visit, 5, 0);
    for (int n = 0; n < count; n++) free(lines[n]);
    count = 0;
    tell("stopped", done);
    must(!unlink("t/stop"), "unlink");
    const char *patterns[] = {"t/*", "t/.*", "t/f?", "t/*/*.pt", "t/a/b/c/deep", "t/removed", "t/gone", "t/gone/*", "*", "t/to_dir/*", "t/[!f]*",
        "t/{f1,a,none}", "t/none", "t/writt*", "~/none*"};
    for (unsigned n = 0; n < sizeof patterns / sizeof *patterns; n++)
        for (int f = 0; f < 6; f++)
            globs(patterns[n], (int[]){0, GLOB_MARK, GLOB_BRACE, GLOB_ONLYDIR, GLOB_DOOFFS | GLOB_NOCHECK, GLOB_PERIOD | GLOB_TILDE}[f]);
    globs("t/f1/*", GLOB_ERR);
    must(!close(writer), "close");
    if (barriers) {
        const char *tops[] = {"t", "t/a", "t/f2", "t/to_dir", "t/removed", "."};
        for (unsigned n = 0; n < sizeof tops / sizeof *tops; n++)
            for (int f = 0; f < 4; f++) {
                put("t/f1", "pending again");
                must(!unlink("t/f2"), "unlink");
                put("t/f2", "pending again");
                entries(tops[n], (int[]){FTS_PHYSICAL, FTS_LOGICAL, FTS_PHYSICAL | FTS_NOCHDIR, FTS_PHYSICAL | FTS_COMFOLLOW}[f]);
            }
        put("t/f3", "pending");
        expands("t/f* $HOME_OF_NOBODY t/none*");
        put("t/f4", "pending");
        must(!unlink("t/f3"), "unlink");
        expands("t/f[1-9]");
    }
    printf("## end\n");
    return 0;
}
