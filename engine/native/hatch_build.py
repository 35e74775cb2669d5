"""Build hook: compiles the CPU kernels while the package is built. Without a compiler the package is pure Python."""

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_LIBRARY = "engine/native/_kernels.so"


class KernelBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        # By path: the package that is being built cannot be imported yet.
        builder = runpy.run_path(str(Path(self.root) / "engine" / "native" / "build.py"))
        try:
            library = builder["build"]()
        except builder["BuildError"] as error:
            self.app.display_warning(f"CPU kernels left out, torch does their work: {error}")
            return
        if version == "editable":
            return  # the library lies where it is imported from
        build_data["force_include"][str(library)] = _LIBRARY
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
