# Spack package. Put it into a repository as packages/monarch/package.py. Not run: no Spack could be
# had (docs/INSTALL.md); written after the documentation of Spack 1.0.
# Replace example.org by the address of your clone.
from spack.package import *


class Monarch(CargoPackage):
    """Keeps the training data of deep-learning jobs on the node instead of the parallel file
    system."""

    homepage = "https://example.org/monarch"
    git = "https://example.org/monarch.git"

    license("Apache-2.0", checked_by="monarch")

    version("0.2.0", tag="v0.2.0")

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")

    requires("platform=linux", msg="the preload library is for glibc on Linux")

    def build(self, spec, prefix):
        cargo = which("cargo", required=True)
        cargo("build", "--locked", "--profile", "dist", "-p", "monarch", "-p", "monarch-shim", "-p", "monarch-audit")

    def install(self, spec, prefix):
        mkdirp(prefix.bin, join_path(prefix.lib, "monarch"), prefix.include, join_path(prefix.share, "man", "man1"))
        install("target/dist/monarch", prefix.bin)
        install("target/dist/libmonarch_shim.so", join_path(prefix.lib, "monarch"))
        install("target/dist/libmonarch_audit.so", join_path(prefix.lib, "monarch"))
        install("include/monarch.h", prefix.include)
        Executable(join_path(prefix.bin, "monarch"))("man", join_path(prefix.share, "man", "man1"))
