#!/bin/sh
# TaskProlog (slurm.conf: TaskProlog=...), runs as the user before each task: what it prints after `export` is in the task's environment.
echo "export SLURM_TMPDIR=${MONARCH_LOCAL:-/local}/$SLURM_JOB_ID"
