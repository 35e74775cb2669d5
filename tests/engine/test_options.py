"""Options are checked before anything heavy happens, and a refusal is one line."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.errors import ConfigError
from engine.server.command import serve
from engine.server.options import ServeOptions, derive_kv_blocks, parse_size, read_admin_token


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("512MiB", 512 << 20),
        ("512M", 512 << 20),
        ("1.5GB", 1_500_000_000),
        ("1000", 1000),
        ("64 kib", 64 << 10),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "2 gigabytes", "0", "1e9"])
def test_bad_sizes_are_refused(text: str):
    with pytest.raises(ConfigError):
        parse_size(text)


def test_blocks_fill_the_asked_share_of_the_memory_beside_the_weights():
    options = ServeOptions(device_memory=1000, memory_utilization=0.9)
    assert derive_kv_blocks(options, weight_bytes=300, block_bytes=100) == 6
    assert derive_kv_blocks(ServeOptions(kv_blocks=7, device_memory=1000), 300, 100) == 7
    assert derive_kv_blocks(ServeOptions(), 300, 100) == 1024
    assert derive_kv_blocks(ServeOptions(memory_utilization=0.5), 300, 100, own_memory=2000) == 7
    assert derive_kv_blocks(options, 300, 100, own_memory=1 << 40) == 6, "what is asked for goes first"
    with pytest.raises(ConfigError, match="no KV block"):
        derive_kv_blocks(options, weight_bytes=850, block_bytes=100)


@pytest.mark.parametrize(
    "values",
    [
        {"max_batched_tokens": 0},
        {"max_sequences": -1},
        {"block_size": 0},
        {"kv_blocks": 0},
        {"threads": 0},
        {"port": 65536},
        {"memory_utilization": 0},
        {"memory_utilization": 1.1},
        {"drain_timeout": -1},
        {"role": "decode"},
        {"role": "prefill", "prefill": "http://127.0.0.1:8001"},
        {"prefill": "127.0.0.1:8001", "role": "decode"},
        {"prefill": "https://127.0.0.1:8001", "role": "decode"},
        {"role": "encode"},
        {"transfer": "pigeon"},
        {"transfer_timeout": 0},
        {"remote_prefill_tokens": 0},
        {"log_level": "loud"},
        {"prefix_index": "btree"},
        {"prefix_hash": "md5"},
        {"device": "tpu"},
        {"attention": "sparse"},
        {"dtype": "float7"},
        {"profile_every": -1},
    ],
)
def test_an_option_out_of_range_is_named(values: dict[str, object]):
    name, value = next(iter(values.items()))
    with pytest.raises(ConfigError) as caught:
        ServeOptions(**values)  # type: ignore[arg-type]
    assert f"--{name.replace('_', '-')}" in str(caught.value)
    assert str(value) in str(caught.value)


def test_the_admin_token_is_one_word(tmp_path: Path):
    path = tmp_path / "token"
    path.write_text(" s3cret\n")
    assert read_admin_token(path) == b"s3cret"
    for content in ("", " \n", "two words", "schlüssel"):
        path.write_text(content)
        with pytest.raises(ConfigError, match="--admin-token-file"):
            read_admin_token(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_admin_token(tmp_path / "missing")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--max-batched-tokens", "0"], "--max-batched-tokens"),
        (["--device-memory", "lots"], "'lots'"),
        (["--model", "no-such-model"], "no-such-model"),
        (["--model", "tiny", "--dtype", "float7"], "float7"),
        (["--model", "tiny", "--host", "999.1.1.1"], "--host"),
        (["--model", "tiny", "--kv-blocks", "999999999"], "KV pool too large"),
        (["--model", "tiny", "--device-memory", "1MiB", "--kv-blocks", "4096"], "KV pool too large"),
        (["--model", "tiny", "--device-memory", "100KiB"], "no KV block"),
        (["--model", "tiny", "--max-model-len", "9999"], "positions the model has"),
        (["--model", "tiny", "--kv-blocks", "10", "--max-model-len", "161"], "tokens the KV pool holds"),
        (["--model", "tiny", "--admin-token-file", "/no/such/file"], "--admin-token-file"),
    ],
)
def test_what_cannot_start_says_so_in_one_line(arguments: list[str], said: str):
    result = CliRunner().invoke(serve, ["--port", "0", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr


def test_the_command_is_known_without_torch():
    heavy = ("torch", "numpy", "uvicorn", "starlette", "prometheus_client")
    code = f"import sys; import engine.server.command; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
