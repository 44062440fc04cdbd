-- Lmod module file. Put it into MODULEPATH as monarch/0.2.0.lua, and set the prefix to where the
-- tarball was unpacked.
local version = "0.2.0"
local prefix = os.getenv("MONARCH_PREFIX") or pathJoin("/opt/monarch", version)

help([[
Monarch keeps the training data of deep-learning jobs on the node:

    monarch run --root /scratch/imagenet -- python train.py
]])
whatis("Name: monarch")
whatis("Version: " .. version)
whatis("Description: storage tiering for deep-learning jobs")

prepend_path("PATH", pathJoin(prefix, "bin"))
prepend_path("MANPATH", pathJoin(prefix, "share/man"))
prepend_path("CPATH", pathJoin(prefix, "include"))
