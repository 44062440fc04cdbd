#!/bin/sh
# TaskProlog (slurm.conf: TaskProlog=...), runs as the user before each task: what it prints after `export` is in the task's environment.
# (Only one that the prolog has made: the user's own.)
dir=${MONARCH_LOCAL:-/local}/$SLURM_JOB_ID
[ ! -O "$dir" ] || [ -L "$dir" ] || echo "export SLURM_TMPDIR=$dir"
