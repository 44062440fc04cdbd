"""Adds the programs to the wheel, if ../release has put them into build/, and sets its tag."""

import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Programs(BuildHookInterface):
    """``build/bin/*`` becomes scripts, ``build/data/*`` files below the prefix."""

    def initialize(self, version, build_data):
        """Called by hatchling before the wheel is written."""
        build = os.path.join(self.root, "build")
        tag = os.environ.get("MONARCH_WHEEL_TAG")
        if not tag or not os.path.isdir(build):
            return
        build_data["pure_python"] = False
        build_data["tag"] = tag
        for name in sorted(os.listdir(os.path.join(build, "bin"))):
            build_data["shared_scripts"][os.path.join(build, "bin", name)] = name
        for top, _, names in sorted(os.walk(os.path.join(build, "data"))):
            for name in sorted(names):
                file = os.path.join(top, name)
                build_data["shared_data"][file] = os.path.relpath(file, os.path.join(build, "data"))
