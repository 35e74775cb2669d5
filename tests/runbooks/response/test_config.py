"""runbooks.toml is checked whole, and says what is wrong in one line."""

from pathlib import Path

import pytest

from runbooks.errors import ConfigError
from runbooks.response.config import read_config
from tests.runbooks.response.scenes import ACT, alert, write_config


def refuse(folder: Path, old: str, new: str) -> str:
    write_config(folder, "http://h:1")
    path = folder / "runbooks.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as refused:
        read_config(path)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('do = "lower_budget"', 'do = "rm"', "Invalid value 'rm' - at `$.runbooks[0].acts[0].do`"),
        ('policy = "auto"', 'policy = "yes"', "Invalid enum value 'yes' - at `$.runbooks[0].acts[0].policy`"),
        ('policy = "auto"', 'polcy = "auto"', "unknown field `polcy`"),
        ('ttl = "15m"', 'ttl = "forever"', "act lower_budget: 'forever' is not a duration"),
        ('ttl = "15m"', 'ttl = "40h"', "ttl must be 1s to 24h"),
        ('ttl = "15m"', "factor = 0.01", "factor = 0.01 must be 0.1 to 0.95"),
        ('["prefill_interference"]', '["prefil"]', "'prefil' is no hypothesis"),
        ('["prefill_interference"]', "[]", "causes is empty"),
        ('match = { instance = "chat:8000" }', "match = {}", "match is empty"),
        ('match = { instance = "chat:8000" }', 'match = { instance = "(" }', "is not a regular expression"),
        ('url = "http://h:1"', 'url = "h:1"', "is not http://HOST:PORT"),
        ('slo = "itl_p99=200ms"', 'slo = "p99=200"', "target chat: slo: "),
        ('admin_token_file = "admin-token"', "", "needs the admin surface"),
        ('alerts = ["InterTokenLatencySlow"]', "alerts = []", "nothing would start it"),
        ('window = "1s"', 'window = "1d"', "'1d' is not a duration"),
        ('window = "1s"', 'symptom = "vibes"', "symptom 'vibes'"),
        ("[commands]", "[[commands]]", "Expected `object`"),
        ("[receiver]", "receiver = 1\n[x]", "Expected `object`"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, old, new, words):
    assert words in refuse(tmp_path, old, new)


def test_a_command_must_be_allowed(tmp_path):
    command = ACT.replace("lower_budget", "command") + 'command = "rm"\n'
    with pytest.raises(ConfigError, match=r"'rm' is not in \[commands\]"):
        write_config(tmp_path, "http://h:1", acts=command)


def test_approval_is_for_loopback(tmp_path):
    with pytest.raises(ConfigError, match="need a receiver on loopback"):
        write_config(tmp_path, "http://h:1", acts=ACT.replace('"auto"', '"approve"'), host="0.0.0.0")


def test_labels_choose_runbook_and_target(tmp_path):
    config = write_config(tmp_path, "http://h:1", runbook='match = { severity = "page|critical" }')
    assert config.route(alert(severity="page").labels) is not None
    assert config.route(alert(severity="ticket").labels) is None
    assert config.route(alert(severity="page", instance="other:8000").labels) is None
    assert config.route(alert(severity="page", instance="chat:80001").labels) is None, "a pattern matches whole"
    assert config.route({"alertname": "Other"}) is None


def test_a_secret_is_never_shown(tmp_path):
    config = write_config(tmp_path, "http://h:1")
    (tmp_path / "webhook-token").write_text("two words\n")
    with pytest.raises(ConfigError) as refused:
        config.secret("webhook-token")
    assert "two" not in str(refused.value)
