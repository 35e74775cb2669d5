"""What a thread of a serving engine is doing, from its Python stack, by ordered patterns: vLLM, SGLang and ours.

A stack is read from its innermost frame outwards, and the first frame that any pattern knows decides: JSON encoding inside
a request handler is serialising, a lock waited for inside the scheduler is waiting. Frames are written
`function (file:line)`, the function qualified by its class from Python 3.11 on.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from functools import cache


class Activity(StrEnum):
    WAITING = "waiting"
    TOKENISING = "tokenising"
    DETOKENISING = "detokenising"
    SERIALISING = "serialising"
    SAMPLING = "sampling"
    FORWARD = "forward"
    SCHEDULING = "scheduling"
    SERVING = "serving"
    """Handling HTTP requests and streams."""
    OTHER = "other"


class Role(StrEnum):
    ENGINE = "engine"
    """The loop that schedules steps."""
    WORKER = "worker"
    """Runs the model for a loop in another process."""
    FRONTEND = "frontend"
    """API server, tokenizer, detokenizer."""
    OTHER = "other"


ACTIVITIES: tuple[tuple[Activity, str], ...] = (
    (
        Activity.WAITING,
        r"\b(wait|_wait_for_tstate_lock|acquire|select|poll|epoll|sleep|join|recv\w*|_recv\w*|accept|"
        r"get|_poll|dequeue|acquire_read|wait_for_work) \((threading|selectors|queue|socket|subprocess|"
        r"multiprocessing/\w+|zmq/[\w/]+|concurrent/[\w/]+|asyncio/[\w/]+|"
        r"[\w/]*shm_broadcast|[\w/]*message_queue)(\.\w+)?:|\b(select|poll|sleep) \(|\brecv\w* \(zmq",
    ),
    (
        Activity.DETOKENISING,
        r"detokeniz|decode\w* \((transformers|tokenizers|.*tokeniz)|incremental_decod|batch_decode",
    ),
    (
        Activity.TOKENISING,
        r"\((transformers/\w*tokenization|tokenizers/)|tokeniz\w+\.py|apply_chat_template|chat_template|"
        r"\(jinja2/|encode_batch|_encode_plus",
    ),
    (
        Activity.SERIALISING,
        r"\((json/|msgspec/|msgpack|pickle|cloudpickle|pydantic|orjson|ujson|multiprocessing/reduction|zmq/utils/json)|"
        r"serial_utils\.py|serialization\.py|model_dump|\b(dumps|loads|encode|decode) \(|send_pyobj|recv_pyobj|sse\.py",
    ),
    (
        Activity.SAMPLING,
        r"/sampler?\.py|/sampling\.py|/sample/|logits_processor|rejection_sampl|penalties\.py|logprobs\.py",
    ),
    (
        Activity.FORWARD,
        r"\(torch/|model_runner|gpu_worker|/models/|model_executor/|execute_model|tp_worker|forward_batch|cuda_graph|"
        r"attention/|layers/|engine/runner/|engine/model/|flashinfer/|triton/|decode_graphs",
    ),
    (
        Activity.SCHEDULING,
        r"core/sched/|/scheduler\w*\.py|schedule_batch\.py|schedule_policy\.py|kv_cache_manager|block_pool|kv_cache_utils|"
        r"radix_cache|mem_cache/|prefix_cache|prefix_index|radix_index|\bschedule\w* \(|get_next_batch_to_run|"
        r"engine/(core|scheduler|admission|waiting|forks|ghost_list)\.py",
    ),
    (
        Activity.SERVING,
        r"\((uvicorn|starlette|fastapi|aiohttp|httptools|h11|anyio|asyncio|sse_starlette)/|entrypoints/|openai/|"
        r"async_llm|output_processor|tokenizer_manager|engine/server/|http_server",
    ),
)

ROLES: tuple[tuple[Role, str], ...] = (
    (
        Role.ENGINE,
        r"run_busy_loop|run_engine_core|event_loop_(normal|overlap|pp)\w* \(|run_scheduler_process|engine/loop\.py|"
        r"engine/core\.py",
    ),
    (Role.WORKER, r"worker_busy_loop|worker_main|forward_thread_func|run_data_parallel"),
    (
        Role.FRONTEND,
        r"uvicorn/|starlette/|fastapi/|entrypoints/|async_llm|tokenizer_manager|detokenizer_manager|"
        r"run_detokenizer_process|engine/server/|http_server|aiohttp/web",
    ),
)


@cache
def _compiled() -> tuple[tuple[tuple[Activity, re.Pattern[str]], ...], tuple[tuple[Role, re.Pattern[str]], ...]]:
    """On first use: most of what imports this module reads no stack."""
    return (
        tuple((activity, re.compile(pattern)) for activity, pattern in ACTIVITIES),
        tuple((role, re.compile(pattern)) for role, pattern in ROLES),
    )


def activity_of(frames: Sequence[str]) -> Activity:
    """`frames` from the outermost to the innermost."""
    activities, _ = _compiled()
    for frame in reversed(frames):
        for activity, pattern in activities:
            if pattern.search(frame):
                return activity
    return Activity.OTHER


def role_of(frames: Sequence[str]) -> Role:
    """What the thread is for, by any of its frames."""
    for role, pattern in _compiled()[1]:
        if any(pattern.search(frame) for frame in frames):
            return role
    return Role.OTHER
