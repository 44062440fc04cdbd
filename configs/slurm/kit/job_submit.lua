-- job_submit.lua (slurm.conf: JobSubmitPlugins=lua), beside slurm.conf on the controller. Refuses
-- jobs with a wrong request, and makes a licence or #BB line the comment. A site that has this file
-- adds the lines with `monarch` to its own.

local here = debug.getinfo(1, "S").source:match("^@(.*)/")
local monarch = dofile(here .. "/monarch/monarch_comment.lua")

function slurm_job_submit(job, _partitions, _uid)
	return monarch.job_submit(job)
end

function slurm_job_modify(job, _record, _partitions, _uid)
	return monarch.job_modify(job)
end
