"""What `stallscope experiment` makes of four comparisons on our own engine with a real model.

    python -m tests.benchmarks.experiment_proofs [--only NAME]

Long prompts interfere with streams. A budget of 1024 tokens against 128; the engine against itself; a cap of 64 sequences against
48, of which a handful run; and the same again while other clients send to one arm. The load is fitted to the machine's pace.
"""

import argparse
import sys

from runbooks.drills.engine_process import EngineProcess
from tests.runbooks.experiments.on_engine import (
    BLOCK,
    BUDGETS,
    TOKENS,
    WORDS,
    OthersWhen,
    interference,
    knob,
    measure_pace,
    run_command,
)

NAMES = ("budget", "same", "cap", "others")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NAMES, action="append")
    arguments = parser.parse_args()
    with EngineProcess(["--model", "smollm2", "--max-batched-tokens", str(BUDGETS[0]), "--threads", "1"]) as engine:
        pace = measure_pace(engine.url, WORDS)
        print(f"a prompt of {WORDS} words takes {pace.prompt:.2f} s in one step, a token {pace.token * 1e3:.0f} ms\n")
        load = [*interference(pace, WORDS, TOKENS), *BLOCK]
        cap = knob(engine, "max_sequences", 64, 48)
        commands = {
            "budget": [*knob(engine, "max_batched_tokens", *BUDGETS), "--hypothesis", "prefill_interference"],
            "same": ["--arm-a", engine.url, "--arm-b", engine.url],
            "cap": cap,
            "others": cap,
        }
        for name in arguments.only or NAMES:
            if name == "others":
                with OthersWhen(engine, "max_sequences", 48, WORDS // 4):
                    done = run_command(*commands[name], *load)
            else:
                done = run_command(*commands[name], *load)
            print(f"== {name} (exit code {done.returncode})\n{done.stdout or done.stderr}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
