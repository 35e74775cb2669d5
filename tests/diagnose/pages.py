"""What is read from pages, log lines and JSON answers of an engine, as a test writes them down."""

from diagnose.assembly import assemble
from diagnose.commands.diagnose import judge
from diagnose.observation import Observation, observe
from diagnose.policy import DEFAULT_POLICY
from diagnose.signals import Signals
from diagnose.sources.engine_log import read_log
from diagnose.sources.log_signals import LogEvidence
from diagnose.sources.state import StateEvidence, shape_of
from diagnose.verdict import Verdict
from probes.recording import Entry


def pages(*texts: str) -> Observation:
    return observe("t", [Entry(1000.0 + 10 * index, "exposition", text) for index, text in enumerate(texts)])


def signals(*texts: str) -> Signals:
    return assemble(pages(*texts), DEFAULT_POLICY).signals


def verdict(name: str, *texts: str) -> Verdict:
    diagnosis = judge(pages(*texts), None, (), is_live=False, target="t")
    return next(finding.verdict for finding in diagnosis.findings if finding.name == name)


def log(*lines: str) -> Signals:
    return LogEvidence(read_log("log", lines)).signals(None)


def state(answer: object) -> Signals:
    shape = shape_of(answer)
    assert shape is not None
    return StateEvidence(shape, "x.json", [answer]).signals(None)
