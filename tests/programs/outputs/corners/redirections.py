"""What a shell redirects into a file, which a child opens, inherits and never closes; then, at once, a
change of its name. `redirections.py [--no-barriers] [NAME...]` in the directory where they go.
"""
import os, sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from see import look, main, replay, say, tool

TIMES = 5


def sh(script):
    """The shell opens the file; the command, another program, ends with it open."""
    tool("sh", "-c", f"set -e; {script}")


@replay
def then_removed():
    for n in range(TIMES):
        sh(f"seq 20000 > f{n}; rm f{n}")
        look(f"f{n}")
    sh("seq 20000 > f; rm f; seq 5 > f; rm f; seq 9 > f")
    look("f")


@replay
def then_renamed():
    for n in range(TIMES):
        sh(f"seq 20000 > f{n}; mv f{n} g{n}")
        sh(f"seq {n} > new; mv -f new g")
        look(f"f{n}", f"g{n}", "g")


@replay
def then_linked_symbolically():
    for n in range(TIMES):
        sh(f"seq 20000 > f{n}; ln -s f{n} link{n}")
        say(os.readlink(f"link{n}"), os.path.getsize(f"link{n}"))


@replay(barrier=True)
def then_another_link_is_turned_to_it():
    for n in range(TIMES):
        sh(f"seq 20000 > f{n}; ln -sfn f{n} latest")
        say(os.readlink("latest"), os.path.getsize("latest"))


@replay
def then_read_and_written_again():
    for n in range(TIMES):
        sh(f"seq 20000 > f{n}; wc -l < f{n}; seq 3 >> f{n}; tail -n 1 f{n}; seq 4 > f{n}; cat f{n}")
        look(f"f{n}")


@replay
def then_its_mode_and_times_are_set():
    for n in range(TIMES):
        sh(f"seq 20000 > f{n}; chmod 640 f{n}; touch -d 2017-07-14T02:40:00Z f{n}")
        look(f"f{n}")


@replay(barrier=True)
def then_its_directory_is_renamed():
    for n in range(TIMES):
        sh(f"mkdir tmp; seq 20000 > tmp/f; seq 30 > tmp/g; mv tmp final{n}")
        look("tmp", f"final{n}", f"final{n}/f", f"final{n}/g")


@replay(barrier=True)
def then_its_directory_is_removed():
    for n in range(TIMES):
        sh(f"mkdir -p d{n}/e; seq 20000 > d{n}/f; seq 30 > d{n}/e/g; rm -r d{n}")
        look(f"d{n}")
        sh(f"mkdir d; seq 20000 > d/f; rm d/f; rmdir d")
        look("d")


@replay(barrier=True)
def then_linked():
    for n in range(TIMES):
        sh(f"seq 20000 > f{n}; ln f{n} g{n}")
        look(f"f{n}", f"g{n}")


@replay(barrier=True)
def then_executed():
    sh("echo 'echo executed' > f; chmod +x f; ./f")
    look("f")


@replay(barrier=True)
def of_a_shell_that_is_left_behind():
    """The writer is another than the one that changes names, and has no parent left."""
    os.mkdir("d")
    sh("(seq 20000; sleep 0.3; seq 20001 20010) > d/f & (sleep 0.1; mv d e) & wait")
    say(sorted(os.listdir()))
    look("d", "e/f")


if __name__ == "__main__":
    main()
