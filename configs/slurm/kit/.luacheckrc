-- luacheck .
std = "lua51"
max_line_length = false
read_globals = { "slurm" }
-- Slurm calls them.
allow_defined_top = true
ignore = { "131/slurm_.*" }
