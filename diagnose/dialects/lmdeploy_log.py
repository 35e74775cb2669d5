"""LMDeploy's line every 10 s, in its older and newer wording."""

import re

from diagnose.dialects.base import Usage
from diagnose.dialects.lmdeploy import LMDEPLOY
from diagnose.dialects.log import LogTable, PeriodicLine, Reads, figure

LMDEPLOY_LOG = LogTable(
    engine="lmdeploy",
    periodic=(
        PeriodicLine(
            name="LMDeploy's periodic line",
            marks="Avg thr (in/out):",
            every_seconds=10.0,
            instance=re.compile(r"\bDP(\d+)\]"),
            figures=(
                figure(
                    "tokens_prefill",
                    r"Avg thr \(in/out\): ([\d.]+) /",
                    Reads.RATE,
                    late=True,
                    coverage="cached ones too",
                ),
                figure("tokens_decode", r"Avg thr \(in/out\): [\d.]+ / ([\d.]+) tokens/s", Reads.RATE),
                figure("running", r"Engine \(running/waiting\): (\d+) /"),
                figure("waiting", r"Engine \(running/waiting\): \d+ / (\d+)"),
                figure("pool_usage", r"KV cache: ([\d.]+)%", factor=0.01, coverage="live and cached blocks together"),
            ),
        ),
    ),
    usage=Usage.WITH_CACHED,
    cannot=LMDEPLOY.cannot,
)
