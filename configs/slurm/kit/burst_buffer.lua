-- burst_buffer.lua (slurm.conf: BurstBufferType=burst_buffer/lua), beside slurm.conf and
-- burst_buffer.conf on the controller. A job with the line
--
--   #BB monarch:/scratch/imagenet@200GiB
--
-- stays pending until stage.sh has staged the directory, or has given up. Slurm runs this on the
-- controller, before it chooses nodes: it is for a cluster of one machine, which is controller and
-- node. Elsewhere the prolog stages. It needs job_submit.lua, which makes the line the comment, and
-- the rights of root: SlurmUser=root.

local here = debug.getinfo(1, "S").source:match("^@(.*)/")

local function done()
	return slurm.SUCCESS
end

-- While the job is pending, in the background. A stage that fails holds no job: the prolog tries it
-- again, and its note is for the user. When the job is cancelled, Slurm kills this, and stage.sh,
-- in a session of its own, sees it and cleans up.
function slurm_bb_data_in(job_id, _script)
	local status = os.execute(string.format("exec setsid --wait '%s/monarch/stage.sh' hold %d </dev/null >/dev/null 2>&1", here, job_id))
	-- (Lua 5.1 returns a number, later ones a truth value.)
	if status ~= 0 and status ~= true then
		slurm.log_error("monarch: job %d is not staged; the log of stage.sh says why", job_id)
	end
	return slurm.SUCCESS
end

slurm_bb_job_process = done
slurm_bb_pools = done
slurm_bb_setup = done
slurm_bb_real_size = done
slurm_bb_paths = done
slurm_bb_pre_run = done
slurm_bb_post_run = done
slurm_bb_data_out = done
slurm_bb_job_teardown = done
slurm_bb_get_status = done
