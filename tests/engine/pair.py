"""A prefill and a decode instance as two real processes, and what is asked of them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import urllib3

from tests.engine.serving import Serving, serving

SMALL = ("--model", "tiny", "--threads", "1", "--block-size", "16")


class Pair:
    def __init__(self, prefill: Serving, decode: Serving) -> None:
        self.prefill = prefill
        self.decode = decode


@contextmanager
def pair(
    *, prefill: tuple[str, ...] = (), decode: tuple[str, ...] = (), both: tuple[str, ...] = SMALL
) -> Iterator[Pair]:
    """Options of each besides the roles. Prompts are computed in chunks of 64 tokens."""
    budget = ("--max-batched-tokens", "64")
    with (
        serving(*both, "--role", "prefill", *budget, *prefill, seconds_to_ready=240) as first,
        serving(*both, "--role", "decode", "--prefill", first.url, *decode, seconds_to_ready=240) as second,
    ):
        yield Pair(first, second)


def complete(server: Serving, prompt: list[int] | str, **asked: Any) -> dict[str, Any]:
    return complete_at(server.url, prompt, **asked)


def complete_at(url: str, prompt: list[int] | str, **asked: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True} | asked
    with urllib3.PoolManager(retries=False, timeout=60) as pool:
        response = pool.request("POST", url + "/v1/completions", body=json.dumps(body).encode())
        answer: dict[str, Any] = json.loads(response.data)
        assert response.status == 200, answer
        return answer


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["text"])


def page(server: Serving, path: str = "/metrics") -> str:
    with urllib3.PoolManager(retries=False, timeout=20) as pool:
        return pool.request("GET", server.url + path).data.decode()


def metrics(server: Serving) -> dict[str, float]:
    lines = (line for line in page(server).splitlines() if line and not line.startswith("#"))
    return {name.removeprefix("stallscope_"): float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def steps(server: Serving) -> list[dict[str, Any]]:
    return [json.loads(line) for line in page(server, "/debug/steps").splitlines()[1:]]
