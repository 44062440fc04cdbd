-- cli_filter.lua (slurm.conf: CliFilterPlugins=lua), beside slurm.conf on login nodes. Tells users
-- of a wrong request, or of a directory that is not there, before the job is submitted. A site that
-- has this file adds the lines with `monarch` to its own. Not for login nodes without the file
-- system of the data.

local here = debug.getinfo(1, "S").source:match("^@(.*)/")
local monarch = dofile(here .. "/monarch/monarch_comment.lua")

function slurm_cli_setup_defaults(_options, _early)
	return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, _offset)
	return monarch.cli_pre_submit(options)
end

function slurm_cli_post_submit(_offset, _job, _step)
	return slurm.SUCCESS
end
