"""Overrides by file: what is accepted, and one line for what is not."""

from dataclasses import fields

import pytest

from diagnose.commands.diagnose import judge
from diagnose.errors import SourceError
from diagnose.policy import DEFAULT_POLICY, ORDERED, RATIOS, Policy, overridden
from diagnose.report.json_report import to_json
from diagnose.report.outline import warnings
from diagnose.thresholds import read_policy, thresholds
from tests.diagnose import cases


def write(tmp_path, text: str):
    path = tmp_path / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_overrides_change_what_they_name_and_nothing_else(tmp_path):
    policy = read_policy(write(tmp_path, "[thresholds]\nslow_gap_factor = 3\nmin_p99_gaps = 500\n"))
    assert policy.slow_gap_factor == 3
    assert policy.min_p99_gaps == 500
    assert [(o.name, o.value, o.default) for o in overridden(policy)] == [
        ("slow_gap_factor", 3, DEFAULT_POLICY.slow_gap_factor),
        ("min_p99_gaps", 500, DEFAULT_POLICY.min_p99_gaps),
    ]


def test_an_empty_table_is_the_default(tmp_path):
    assert read_policy(write(tmp_path, "[thresholds]\n")) == DEFAULT_POLICY


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[thresholds]\nslow_gap = 3", "no threshold 'slow_gap' (did you mean slow_gap_factor?)"),
        ("[thresholds]\nmagic = 3", "no threshold 'magic'; `stallscope explain --thresholds` lists them"),
        ("[thresholds]\nslow_gap_factor = 'two'", "slow_gap_factor = two: must be a number from 1 to 100"),
        ("[thresholds]\nslow_gap_factor = true", "slow_gap_factor = True: must be a number from 1 to 100"),
        ("[thresholds]\nslow_gap_factor = 0.5", "slow_gap_factor = 0.5: must be a number from 1 to 100"),
        ("[thresholds]\nslow_gap_factor = nan", "slow_gap_factor = nan: must be a number from 1 to 100"),
        ("[thresholds]\npool_low = 50", "pool_low = 50: must be a number from 0 to 1"),
        ("[thresholds]\nmin_p99_gaps = 2.5", "min_p99_gaps = 2.5: must be a whole number from 1 to 1e+06"),
        ("[thresholds]\nmin_p99_gaps = 0", "min_p99_gaps = 0: must be a whole number from 1 to 1e+06"),
        ("[thresholds]\nmin_p99_gaps = [1]", "min_p99_gaps = [1]: must be a whole number"),
        ("[thresholds]\npool_low = 0.9", "pool_low = 0.9 must not exceed pool_well_below = 0.85"),
        ("slow_gap_factor = 3", "'slow_gap_factor' is not known here; write thresholds below [thresholds]"),
        ("", "has no table [thresholds]"),
        ("thresholds = 3", "has no table [thresholds]"),
        ("[thresholds", "is not TOML: "),
        ('[thresholds]\n"\\u001b[2J" = 1', "no threshold '?[2J'"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_key(tmp_path, text, expected):
    with pytest.raises(SourceError) as caught:
        read_policy(write(tmp_path, text))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        read_policy(tmp_path / "none.toml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match="is not text"):
        read_policy(tmp_path / "binary")


def test_the_report_says_what_was_overridden():
    policy = Policy(slow_gap_factor=3.0)
    seen = cases.interference()
    diagnosis = judge(seen, None, (), is_live=True, target=seen.target, policy=policy)
    assert "thresholds overridden: slow_gap_factor 3 (default 2)" in warnings(diagnosis)
    assert to_json(diagnosis)["policy"] == {"overridden": {"slow_gap_factor": {"value": 3.0, "default": 2.0}}}
    plain = judge(seen, None, (), is_live=True, target=seen.target)
    assert to_json(plain)["policy"] == {"overridden": {}}
    assert not any("overridden" in text for text in warnings(plain))


def test_the_tables_name_thresholds_that_exist():
    names = {field.name for field in fields(Policy)}
    assert {*RATIOS, *(name for pair in ORDERED for name in pair)} <= names
    assert [threshold.name for threshold in thresholds()] == [field.name for field in fields(Policy)]


def test_the_defaults_are_ordered():
    for low, high in ORDERED:
        assert getattr(DEFAULT_POLICY, low) <= getattr(DEFAULT_POLICY, high)
