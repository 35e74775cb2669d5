"""Scores of verdicts against truths: counts, precision and recall, and Wilson intervals."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import NamedTuple

from diagnose.diagnosis import Diagnosis
from diagnose.verdict import Verdict
from tests.accuracy.accounts import AccountCheck
from tests.accuracy.windows import Case, Truth, View

NONE = "none"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool said of one case in one view."""

    tool: str
    case: str
    shape: str
    seed: int
    held_out: bool
    view: View
    moved: bool
    primary: str | None
    supported: frozenset[str]
    """Without benign ones, which accuse nobody."""
    truth: Truth
    undetermined: bool
    """Of a masked twin: the hidden hypothesis is undetermined and names what is missing. Else: so is what was induced."""
    seconds: float | None = None
    """From the onset to the right answer; None where that was not measured, or the answer is not right."""
    checks: tuple[AccountCheck, ...] = ()

    @property
    def is_right(self) -> bool:
        """The primary cause is a right one (or none where nothing is wrong), and what must be supported is."""
        if self.view is View.MASKED:
            return self.undetermined and not self.is_wrong_and_confident
        named = self.primary in self.truth.primary if self.truth.primary else self.primary is None
        return named and self.truth.required <= self.supported

    @property
    def is_wrong_and_confident(self) -> bool:
        """Names a primary cause that is not one."""
        right = self.truth.primary or (self.truth.allowed if self.view is View.MASKED else frozenset())
        return self.primary is not None and self.primary not in right

    @property
    def false_supported(self) -> frozenset[str]:
        return self.supported - self.truth.allowed

    @property
    def is_honest(self) -> bool:
        """Does not name what is there, but says that it could not be determined and what to measure for that."""
        return self.primary is None and self.undetermined

    @property
    def should_abstain(self) -> bool:
        return not self.truth.primary


def answer_of(case: Case, view: View, diagnosis: Diagnosis, *, timed: bool = False) -> Answer:
    """`timed`: with the time to the right answer, where there is one to be found, for the views of a live target of ours."""
    answer = _answer(case, view, diagnosis)
    if not timed or view not in (View.RECORDS, View.SCRAPE) or not answer.truth.primary or not answer.is_right:
        return answer
    return replace(answer, seconds=case.seconds_to(view, lambda early: _answer(case, view, early).is_right))


def _answer(case: Case, view: View, diagnosis: Diagnosis) -> Answer:
    truth = case.truth(view)
    blank = Answer(
        "stallscope", case.name, case.shape, case.seed, case.held_out, view, case.moved, None, frozenset(), truth, False
    )
    checks = case.account_checks(diagnosis) if view is not View.MASKED else ()
    return replace(answer_from(blank, diagnosis), checks=checks)


def answer_from(blank: Answer, diagnosis: Diagnosis) -> Answer:
    """With what a diagnosis says."""
    truth = blank.truth
    supported = frozenset(f.name for f in diagnosis.findings if f.is_supported)
    benign = frozenset(f.name for f in diagnosis.findings if f.benign)
    looked_for = {truth.hidden} if blank.view is View.MASKED else truth.primary
    unsettled = [f for f in diagnosis.findings if f.name in looked_for and f.verdict is Verdict.UNDETERMINED]
    return replace(
        blank,
        primary=diagnosis.primary if diagnosis.primary not in benign else None,
        supported=supported - (benign - truth.required),
        undetermined=any(f.judgement.missing for f in unsettled),
    )


class Rate(NamedTuple):
    hits: int
    total: int

    def __str__(self) -> str:
        if not self.total:
            return "-"
        low, high = wilson(self.hits, self.total)
        return f"{100 * self.hits / self.total:.1f} % ({self.hits}/{self.total}; {100 * low:.1f}-{100 * high:.1f})"


def wilson(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share, 95 %. Wilson (1927); unlike the normal one it stays inside 0..1 and is no point at 0 of n."""
    share, spread = hits / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * sqrt(share * (1 - share) / total + spread / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def rate(answers: Iterable[Answer], hit: Callable[[Answer], bool]) -> Rate:
    hits = [hit(answer) for answer in answers]
    return Rate(sum(hits), len(hits))


def abstention_precision(answers: Sequence[Answer]) -> Rate:
    """Of the answers that name no cause, those where none could be named."""
    return rate([a for a in answers if a.primary is None], lambda a: a.should_abstain)


class Scores(NamedTuple):
    """Of one hypothesis as the primary cause."""

    name: str
    precision: Rate
    recall: Rate


def per_condition(answers: Sequence[Answer]) -> list[Scores]:
    """Precision: named rightly of all that name it. Recall: of the cases in which it is a right primary, those answered right."""
    names = sorted({name for a in answers for name in a.truth.primary} | {a.primary for a in answers if a.primary})
    return [
        Scores(
            name,
            rate([a for a in answers if a.primary == name], lambda a: not a.is_wrong_and_confident),
            rate([a for a in answers if name in a.truth.primary and name in a.case], lambda a: a.is_right),
        )
        for name in names
    ]


def confusion(answers: Sequence[Answer]) -> dict[str, Counter[str]]:
    """Condition induced (with `(unmoved)` where no symptom shows) -> what was named primary."""
    table: dict[str, Counter[str]] = {}
    for a in answers:
        label = a.case if a.moved else f"{a.case} (unmoved)"
        table.setdefault(label, Counter())[a.primary or NONE] += 1
    return table
