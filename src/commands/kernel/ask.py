# What `monarch kernel` asks an interpreter, a line each.
import importlib.util, sys
print(sys.executable, sys.prefix, importlib.util.find_spec("ipykernel") is not None, "%d.%d" % sys.version_info[:2], sep="\n")
