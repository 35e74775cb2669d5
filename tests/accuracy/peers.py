"""`python -m tests.accuracy.peers --env NAME=DIRECTORY ...`: packages that give verdicts, on the same cases as a vLLM shows them.

Each peer runs as its own command in an environment of its own, on the pages of the incident; none of them takes a baseline. What
it says is read generously: a finding counts as right when any cause that it can mean is one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.accuracy.cases import What, cached_case, cases_of_this_code, keep, peers_of_this_code
from tests.accuracy.report import put_section, summary
from tests.accuracy.rivals import RIVALS
from tests.accuracy.score import NONE, Answer, answer_of
from tests.accuracy.windows import Case, View, make_case, plan
from tests.builders import build_signals

RESULTS = Path(__file__).parent / "results"
_SECONDS = 300.0
"""For one peer on one case, which takes a few: no peer is cut off because the machine is busy."""

_QUEUE = ("queue_overload", "sequence_cap", "admission_stall")
_CACHE = ("cache_thrashing", "cache_prefix_broken")
_FULL, _PREEMPTING = ("kv_exhaustion",), ("preemption_storm", "kv_exhaustion")

MEANINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "vllm-doctor": {
        "kv_cache_pressure": _FULL,
        "preemption_pressure": _PREEMPTING,
        "prefix_cache_efficiency": _CACHE,
        "queue_latency": _QUEUE,
        "queue_pressure": _QUEUE,
        "ttft_bottleneck": ("prefill_interference", *_QUEUE),
        "tpot_bottleneck": ("bandwidth_saturation", "prefill_interference"),
        "low_throughput": ("engine_hung", "bandwidth_saturation"),
        "error_rate": ("hard_failure",),
        "unreachable": ("hard_failure",),
    },
    "inferpilot": {
        "kv_capacity_bound_preempting": _PREEMPTING,
        "near_capacity": _FULL,
        "not_kv_bound": _QUEUE,
    },
    "inferguard": {
        "profile_metrics_unavailable": ("hard_failure",),
        "profile_kv_cache_critical": _FULL,
        "profile_kv_cache_high": _FULL,
        "profile_preemptions_rising": _PREEMPTING,
        "profile_queue_backlog": _QUEUE,
        "profile_prefix_hit_rate_low": _CACHE,
        "profile_offload_churn": ("cache_thrashing",),
    },
}
"""Of each peer, what a finding can mean in our words. Others accuse nothing: all is well, or they cannot tell."""
_SEVERITIES = ("critical", "warning")
"""In order; what is only for information accuses nothing."""


@contextmanager
def served(pages: Sequence[str], *, dies: bool) -> Iterator[str]:
    """A server that shows the next page at each scrape, and the last one again; with `dies` no answer comes after it."""
    left = list(pages)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not left:
                self.close_connection = True
                return
            body = left.pop(0) if len(left) > 1 or dies else left[0]
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            """Nothing: what peers ask is no news."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        finally:
            server.shutdown()


def _output(command: Sequence[str | Path]) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    return done.stdout


def ask_vllm_doctor(program: Path, pages: Sequence[str], dies: bool, _: Path) -> list[str]:
    """One moment: the last page, or nobody at home."""
    with served([] if dies else pages[-1:], dies=dies) as url:
        text = _output([program, "diagnose", url, "--output", "json"])
    try:
        checks = json.loads(text)["checks"]
    except ValueError:
        return ["unreachable"] if dies else []
    fired = [(check["finding"]["severity"], check["id"]) for check in checks if check["finding"] is not None]
    return _by_severity(fired)


def ask_inferpilot(program: Path, pages: Sequence[str], dies: bool, directory: Path) -> list[str]:
    """Two saved pages: the first and the last."""
    before, after = directory / "before.prom", directory / "after.prom"
    before.write_text(pages[0])
    after.write_text(pages[-1])
    return [json.loads(_output([program, "inspect", before, after, "--json"]))["verdict"]]


def ask_inferguard(program: Path, pages: Sequence[str], dies: bool, directory: Path) -> list[str]:
    """Watches live: the pages follow each other faster than they were written, and it reads only differences."""
    interval = 0.3
    command = [program, "profile", "live", "--engine", "vllm", "--interval", interval, "--timeout", 2.0]
    length = interval * (len(pages) + (1 if dies else 0)) - interval / 2
    with served(pages, dies=dies) as url:
        _output([str(part) for part in (*command, "--duration", length, "--endpoint", url, "--output-dir", directory)])
    found = json.loads((directory / "profile_summary.json").read_text())["findings"]
    return _by_severity([(finding["severity"], finding["code"]) for finding in found])


def _by_severity(found: Sequence[tuple[str, str]]) -> list[str]:
    return [code for severity in _SEVERITIES for one, code in found if one == severity]


PEERS: Mapping[str, Callable[[Path, Sequence[str], bool, Path], list[str]]] = {
    "vllm-doctor": ask_vllm_doctor,
    "inferpilot": ask_inferpilot,
    "inferguard": ask_inferguard,
}
"""Each names its findings, the gravest first."""


def answer_by_peer(peer: str, environment: Path, case: Case) -> Answer:
    pages = [entry.body for entry in case.incident.vllm_pages]
    with tempfile.TemporaryDirectory(prefix="stallscope-") as directory:
        found = PEERS[peer](environment / "bin" / peer, pages, bool(case.incident.events), Path(directory))
    return read_generously(case, peer, [MEANINGS[peer][code] for code in found if code in MEANINGS[peer]])


def read_generously(case: Case, tool: str, meanings: Sequence[Sequence[str]]) -> Answer:
    """Of the gravest finding the meaning that is right, if one is; of every other the same for what is supported."""
    truth = case.truth(View.VLLM)
    kindest = [next((name for name in names if name in truth.allowed), names[0]) for names in meanings]
    primary = next((name for name in meanings[0] if name in truth.primary), kindest[0]) if meanings else None
    supported = frozenset(kindest) | truth.required | {primary} if primary is not None else frozenset[str]()
    return Answer(
        tool=tool,
        case=case.name,
        shape=case.shape,
        seed=case.seed,
        held_out=case.held_out,
        view=View.VLLM,
        moved=case.moved,
        primary=primary,
        supported=supported,
        truth=truth,
        undetermined=False,
    )


def answer_by_rivals(case: Case) -> Iterator[Answer]:
    incident, baseline = case.observations(View.VLLM)
    assert baseline is not None
    now, before = build_signals(incident), build_signals(baseline)
    for tool, rival in RIVALS.items():
        said = rival(now, before)
        yield read_generously(case, tool, [] if said is None else [(said,)])


def answers_to(what: What, environments: Mapping[str, Path], cache: Path | None) -> list[Answer]:
    """Of stallscope, of every peer that is there, and of the simple rivals."""
    case = make_case(*what) if cache is None else cached_case(cases_of_this_code(cache), what)
    ours = answer_of(case, View.VLLM, case.diagnose(View.VLLM))
    peers = [answer_by_peer(peer, environments[peer], case) for peer in PEERS if peer in environments]
    return [ours, *peers, *answer_by_rivals(case)]


def render(answers: Sequence[Answer], environments: Mapping[str, Path], cases: int) -> str:
    absent = sorted(set(PEERS) - set(environments))
    lines = [
        f"# Beside packages that give verdicts: {cases} cases as a vLLM shows them",
        "",
        f"`python -m tests.accuracy.peers`, {time.strftime('%Y-%m-%d')}. One seed of every condition and shape, through vLLM's "
        "metrics page. The peers see the incident; stallscope and the two simple rivals its baseline as well. A peer's finding "
        "counts as right when any cause it can mean is one.",
        *([f"Not run, for want of an environment: {', '.join(absent)}."] if absent else []),
        "",
        *summary(answers),
        "",
        "What each named:",
        "",
    ]
    tools = list(dict.fromkeys((a.tool, a.view) for a in answers))
    lines += [
        f"| induced | {' | '.join(f'{tool}, {view.value}' for tool, view in tools)} |",
        f"|---|{'---|' * len(tools)}",
    ]
    for name in dict.fromkeys(a.case for a in answers):
        cells = []
        for tool in tools:
            named: dict[str, int] = {}
            for a in answers:
                if a.case == name and (a.tool, a.view) == tool:
                    named[a.primary or NONE] = named.get(a.primary or NONE, 0) + 1
            cells.append(", ".join(f"{one} {count}" for one, count in named.items()))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy.peers", description=__doc__)
    parser.add_argument(
        "--env", action="append", default=[], help=f"NAME=DIRECTORY of a venv; NAME one of {', '.join(PEERS)}"
    )
    parser.add_argument("--cache", type=Path, help="as of `python -m tests.accuracy`")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "accuracy.md", help="where the table goes")
    options = parser.parse_args()
    environments = {name: Path(directory) for name, _, directory in (one.partition("=") for one in options.env)}
    if unknown := set(environments) - set(PEERS):
        parser.error(f"--env: no peer {', '.join(sorted(unknown))}; one of {', '.join(PEERS)}")
    wanted: list[What] = [what for what in plan(1) if not options.only or options.only in "+".join(what[0])]
    answers: list[Answer] = []
    for number, what in enumerate(wanted, 1):
        ask = partial(answers_to, what, environments, options.cache)
        answers += ask() if options.cache is None else keep(peers_of_this_code(options.cache), what, ask)
        print(f"{number}/{len(wanted)} {'+'.join(what[0])}/{what[1]}", file=sys.stderr)
    table = render(answers, environments, len(wanted))
    print(table)
    put_section(options.output, table)


if __name__ == "__main__":
    main()
