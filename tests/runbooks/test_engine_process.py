"""An engine that does not get ready: why, and what its log said."""

import pytest

from runbooks.drills.engine_process import EngineProcess
from runbooks.errors import DrillError


def test_one_that_takes_too_long_is_told_from_one_that_failed():
    slow = EngineProcess(["--model", "tiny"], ready_timeout_seconds=0.01)
    with pytest.raises(DrillError, match=r"did not get ready within 0\.01 s: a busy machine\?"):
        slow.__enter__()


def test_one_that_fails_says_its_exit_code_and_its_last_line():
    wrong = EngineProcess(["--model", "no-such-model"])
    with pytest.raises(DrillError, match=r"\(exit code 2\) error: no model 'no-such-model'"):
        wrong.__enter__()
