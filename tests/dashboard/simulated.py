"""Makes tests/data/saturation-simulated.rec anew: `python -m tests.dashboard.simulated`.

No machine without a GPU reads its memory near its ceiling while it serves, so this recording is of the simulated server of
tests/accuracy: half a minute of usual load, then long contexts whose reading takes most of each step. Its model is named
`simulated`.
"""

from dataclasses import replace
from pathlib import Path
from random import Random

from probes.recording import Entry, RecordingWriter
from probes.wire import StepsHeader, encode_steps
from runbooks.experiments.workload import Arrival
from tests.accuracy.conditions import CONDITIONS, quiet_scenario
from tests.accuracy.scenario import Faults
from tests.accuracy.server import SimulatedServer
from tests.accuracy.shapes import SHAPES
from tests.accuracy.windows import WARM_UP_SECONDS
from tests.builders import START_UNIX

PATH = Path(__file__).resolve().parent.parent / "data" / "saturation-simulated.rec"
QUIET_SECONDS, SATURATED_SECONDS = 30, 40


def entries() -> list[Entry]:
    """A page and the step records since the one before, every second."""
    random = Random("saturation")
    quiet = quiet_scenario(SHAPES["small"], random)
    slow = replace(quiet.shape, name="simulated", weight_read_us=36_000, overhead_us=12_000, per_context_us=1.0)
    quiet = replace(quiet, shape=slow)  # a quarter as many steps as usual: a smaller file
    scenario = CONDITIONS["bandwidth_saturation"].induce(quiet, random)
    server = SimulatedServer(scenario.shape, Faults(), "saturation")
    length = WARM_UP_SECONDS + QUIET_SECONDS + SATURATED_SECONDS
    arrivals = [arrival for one in scenario.quiet for arrival in one.draw(length, random)]
    burst = scenario.burst
    assert burst is not None
    arrivals += [Arrival(WARM_UP_SECONDS + QUIET_SECONDS, burst.prompt, burst.output, 0, 0)] * burst.count
    server.offer(sorted(arrivals), salt="shared")
    server.run(WARM_UP_SECONDS)
    found = [Entry(START_UNIX, "exposition", server.page())]
    next_id = server.recorder.next_id
    for second in range(1, QUIET_SECONDS + SATURATED_SECONDS + 1):
        server.run(1.0)
        at = START_UNIX + second
        found.append(Entry(at, "exposition", server.page()))
        steps = server.recorder.steps_since(next_id)
        next_id = steps.next_id
        header = StepsHeader("simulated", next_id, steps.lost, server.now_ns, round(at * 1e9))
        found.append(Entry(at, "steps", "".join(encode_steps(header, steps.records))))
    return found


def main() -> None:
    with RecordingWriter(PATH, "http://127.0.0.1:8000", START_UNIX, existing="replace") as writer:
        for entry in entries():
            writer.write(entry)
    print(f"{PATH.name}: {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
