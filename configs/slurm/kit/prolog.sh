#!/bin/sh
# Prolog (slurm.conf: Prolog=/etc/slurm/monarch/prolog.sh and PrologFlags=Alloc). Runs as root on
# each node of a job before it starts. For jobs with --comment=monarch:/DIRECTORY it waits until
# stage.sh has staged the directory, or has given up. It never fails: Slurm would requeue the job
# and take the node out of service.
case ${SLURM_JOB_COMMENT-} in
  monarch:*) "${0%/*}/stage.sh" prolog || : ;;
esac
exit 0
