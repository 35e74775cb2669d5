"""`stallscope serve`. Nothing heavy is imported before the options are known to be right."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from engine.config import PREFIX_HASHES, PREFIX_INDEXES
from engine.errors import EngineError
from engine.server.options import (
    ATTENTIONS,
    DEFAULT_CPU_BLOCKS,
    DEVICES,
    LOG_LEVELS,
    ROLES,
    TRANSFERS,
    ServeOptions,
    parse_size,
)
from probes.extras import not_installed

EXIT_CONFIG = 2


@click.command(
    context_settings={"show_default": True},
    epilog="""\b
Examples:
  stallscope serve
  stallscope serve --model smollm2 --port 8000 --max-batched-tokens 512 --max-sequences 64
  stallscope serve --model /models/Qwen3-0.6B --admin-token-file token --record server.rec""",
)
@click.option(
    "--model", default="smollm2", help="smollm2, tiny, a GGUF file, or a directory with config and safetensors."
)
@click.option("--served-model-name", help="Name of the model in the API.  [default: the model's own]")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, help="0 takes a free port; the ready line says which."
)
@click.option("--max-batched-tokens", type=int, default=512, help="Token budget of a step, decodes included.")
@click.option("--max-sequences", type=int, default=64, help="Requests that run at the same time.")
@click.option("--block-size", type=int, default=16, help="Tokens per KV block.")
@click.option("--kv-blocks", type=int, help=f"KV blocks.  [default: from --device-memory, else {DEFAULT_CPU_BLOCKS}]")
@click.option("--device-memory", help="Memory for weights and KV pool, e.g. 2GiB.  [default: the machine's]")
@click.option(
    "--memory-utilization", type=float, default=0.9, help="Share of --device-memory that is reserved at start."
)
@click.option("--max-model-len", type=int, help="Tokens of prompt and output.  [default: what model and pool can hold]")
@click.option("--threads", type=click.IntRange(1), help="Compute threads.  [default: torch's choice]")
@click.option("--device", type=click.Choice(DEVICES), default="auto", help="auto: a GPU if there is one.")
@click.option("--dtype", default="auto", help="Of weights and KV. auto: float32 on the CPU, 16 bits on a GPU.")
@click.option(
    "--attention", type=click.Choice(ATTENTIONS), default="auto", help="Kernels; the log says why which was taken."
)
@click.option("--cuda-graphs/--no-cuda-graphs", default=True, help="Capture decode steps at start, replay them later.")
@click.option(
    "--profile-every", type=int, default=2048, help="Captured steps between two that are profiled; 0 for never."
)
@click.option("--prefix-cache/--no-prefix-cache", default=True, help="Reuse KV of equal prompt prefixes.")
@click.option("--prefix-index", type=click.Choice(PREFIX_INDEXES), default="hash_chain", help="How they are found.")
@click.option(
    "--prefix-hash", type=click.Choice(PREFIX_HASHES), default="sha256", help="Of hash_chain; siphash64 costs less."
)
@click.option(
    "--role", type=click.Choice(ROLES), default="both", help="Of a pair: which part of the work is done here."
)
@click.option("--prefill", help="URL of the instance with --role prefill that computes this one's prompts.")
@click.option("--transfer", type=click.Choice(TRANSFERS), default="auto", help="How their KV gets here.")
@click.option(
    "--transfer-timeout",
    type=float,
    default=30.0,
    help="Seconds until a prompt whose KV has not come is computed here.",
)
@click.option("--transfer-overlap/--no-transfer-overlap", default=True, help="Send KV while later chunks are computed.")
@click.option(
    "--remote-prefill-tokens", type=int, default=32, help="Uncached prompt tokens from which --prefill is asked."
)
@click.option(
    "--admin-token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Turns the admin surface on; holds its token.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append metrics and step records to this recording.",
)
@click.option(
    "--otlp-endpoint",
    help="Send metrics and request spans to this OTLP/HTTP receiver.  [default: OTEL_EXPORTER_OTLP_*]",
)
@click.option("--drain-timeout", type=float, default=10.0, help="Seconds that running requests get after SIGTERM.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", help="Least weight of what is logged.")
@click.option("--drill-fault", hidden=True)
def serve(**values: Any) -> None:
    """Serve a model over an OpenAI-compatible API, every step of the engine on record.

    Exit codes: 0 after SIGTERM or SIGINT (running requests are finished first; a second signal stops at once, exit 1),
    2 when it cannot start as asked.
    """
    # Idle compute threads must not spin: on a shared machine they would take the time that is measured.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        if values["device_memory"] is not None:
            values["device_memory"] = parse_size(values["device_memory"])
        options = ServeOptions(**values)
        from engine.server.process import run

        if sys.stderr.isatty():  # the ready line tells everybody else
            click.echo(f"loading {options.model} ...", err=True)
        code = run(options)
    except EngineError as error:
        _refuse(str(error))
    except ModuleNotFoundError as error:
        _refuse(not_installed(f"{error.name}, which serving needs,", "engine"))
    else:
        sys.exit(code)


def _refuse(message: str) -> None:
    click.echo("error: " + " ".join(message.split()), err=True)
    sys.exit(EXIT_CONFIG)
