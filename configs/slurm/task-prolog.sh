#!/bin/sh
# TaskProlog (slurm.conf: TaskProlog=...). Runs as the user before each task: what it prints after
# `export` is set in the task's environment. (Only a directory that the prolog made: the user owns
# it.)
dir=${MONARCH_LOCAL:-/local}/$SLURM_JOB_ID
[ ! -O "$dir" ] || [ -L "$dir" ] || echo "export SLURM_TMPDIR=$dir"
