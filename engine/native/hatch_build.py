"""Build hook: compiles the CPU kernels and the quick part of the timed locks while the package is built. Without a compiler
the package is pure Python."""

import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompilingHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        sys.path.insert(0, self.root)  # what is being built is not installed yet
        from engine.native import build as kernels
        from probes import build as locks

        machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        self._add(
            kernels.build, "CPU kernels left out, torch does their work", f"py3-none-{machine}", version, build_data
        )
        self._add(
            locks.build, "timed locks not compiled, they are in Python", f"cp311-abi3-{machine}", version, build_data
        )

    def _add(
        self, build: Callable[[], Sequence[Path]], without: str, tag: str, version: str, build_data: dict[str, Any]
    ) -> None:
        from probes.build import BuildError

        try:
            libraries = build()
        except BuildError as error:
            self.app.display_warning(f"{without}: {error}")
            return
        if version == "editable":
            return  # they lie where they are imported from
        for library in libraries:
            build_data["force_include"][str(library)] = str(library.relative_to(self.root))
        build_data["pure_python"] = False
        build_data["tag"] = tag
