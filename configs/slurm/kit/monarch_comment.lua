-- What job_submit.lua and cli_filter.lua have in common: the request of a job,
--
--   monarch:/DIRECTORY[,/DIRECTORY...][@CAPACITY]
--
-- as its comment, as a licence or behind #BB in its script. stage.sh checks the same rules again.

local M = {}

local form = "write monarch:/DIRECTORY[,/DIRECTORY...][@CAPACITY], such as monarch:/scratch/imagenet@200GiB"

local function is_request(text)
	return text ~= nil and text:sub(1, 8) == "monarch:"
end

-- The directories of a request. For text that is none, nil; for a wrong one, nil and what is wrong.
function M.parse(text)
	if not is_request(text) then
		return nil
	end
	local list, capacity = text:sub(9):match("^([^@]*)@?(.*)$")
	if text:find("@", 1, true) and not (capacity:match("^[1-9]%d*[KMGT]iB$") and #capacity <= 9) then
		return nil, "the capacity behind @ is a number with KiB, MiB, GiB or TiB, such as 200GiB"
	end
	local directories = {}
	for dir in (list .. ","):gmatch("([^,]*),") do
		if not dir:match("^/[A-Za-z0-9/._+=-]+$") then
			return nil, form .. "; directories have letters, digits and / . _ + = - only"
		elseif (dir .. "/"):find("/../", 1, true) then
			return nil, "write full paths without `..`"
		elseif not dir:find("[^/]") then
			return nil, form
		end
		directories[#directories + 1] = dir
	end
	return directories
end

-- The request of a licence, and the other licences. Slurm itself knows no licence with a path.
local function of_licences(licences)
	local kept, found = {}, nil
	for licence in (licences or ""):gmatch("[^;,]+") do
		if is_request(licence) then
			found = licence
		else
			kept[#kept + 1] = licence
		end
	end
	return found, table.concat(kept, ",")
end

-- The request of a script: behind #BB, for burst_buffer.lua.
local function of_script(script)
	local line = ("\n" .. (script or "")):match("\n#BB[ \t]+(monarch:[^\n]*)")
	return line and line:match("^(.-)%s*$")
end

-- For slurm_job_submit: checks the request, and makes it the comment, where the prolog finds it.
function M.job_submit(job)
	local licence, others = of_licences(job.licenses)
	local request = licence or of_script(job.script)
	if request and request ~= job.comment then
		if job.comment ~= nil and job.comment ~= "" then
			slurm.log_user("monarch: the job has a comment already; write the request as --comment=%s", request)
			return slurm.ERROR
		end
		job.comment = request
	end
	if licence then
		job.licenses = others
	end
	local _, wrong = M.parse(job.comment)
	if wrong then
		slurm.log_user("monarch: %s", wrong)
		return slurm.ERROR
	end
	return slurm.SUCCESS
end

-- For slurm_job_modify, where Slurm shows the user no sentence.
function M.job_modify(job)
	local _, wrong = M.parse(job.comment)
	if wrong then
		slurm.log_error("monarch: %s", wrong)
		return slurm.ERROR
	end
	return slurm.SUCCESS
end

-- For slurm_cli_pre_submit, which runs in sbatch, salloc and srun as the user: says at once that a
-- directory cannot be opened here. The controller may not have the file system, and must not wait
-- for it.
function M.cli_pre_submit(options)
	local directories, wrong = M.parse(options.comment)
	if not directories and not wrong then
		directories, wrong = M.parse((of_licences(options.licenses)))
	end
	for _, dir in ipairs(directories or {}) do
		-- (A file is not a directory: `/.`)
		local opened, why = io.open(dir .. "/.")
		if opened then
			opened:close()
		else
			wrong = wrong or ("cannot stage " .. why)
		end
	end
	if wrong then
		slurm.log_error("monarch: %s", wrong)
		return slurm.ERROR
	end
	return slurm.SUCCESS
end

return M
