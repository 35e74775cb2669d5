"""Where requests' time went, as seen from outside: each answer of the request list adds the time since the one before to what a
request was doing. What passed before the first look is unseen, and said to be.
"""

from dataclasses import dataclass, field

from dashboard.model.requests import RequestRow, Requests
from diagnose.units import seconds


@dataclass(slots=True)
class _Spent:
    unseen: float
    waiting: float = 0.0
    passed_over: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    age: float = 0.0


@dataclass(slots=True)
class RequestTimes:
    _spent: dict[str, _Spent] = field(default_factory=dict)

    def note(self, requests: Requests) -> None:
        """Takes in one answer; requests that are not listed any more are forgotten."""
        if requests.problem:
            return
        kept: dict[str, _Spent] = {}
        for row in requests.rows:
            spent = self._spent.get(row.request_id) or _Spent(unseen=row.age_seconds, age=row.age_seconds)
            gone = max(0.0, row.age_seconds - spent.age)
            if row.state == "waiting":
                spent.waiting += gone
            elif row.deferred_steps:
                spent.passed_over += gone
            elif row.computed_tokens < row.prompt_tokens:
                spent.prefill += gone
            else:
                spent.decode += gone
            spent.age = row.age_seconds
            kept[row.request_id] = spent
        self._spent = kept

    def text(self, row: RequestRow) -> str:
        """`wait 2.10 s  decode 5.02 s  unseen 1.00 s`: parts that are nothing are left out."""
        spent = self._spent.get(row.request_id)
        if spent is None:
            return ""
        parts = (
            ("wait", spent.waiting),
            ("passed over", spent.passed_over),
            ("prefill", spent.prefill),
            ("decode", spent.decode),
            ("unseen", spent.unseen),
        )
        return "  ".join(f"{name} {seconds(value)}" for name, value in parts if value >= 0.01)

    def waited(self, row: RequestRow) -> float:
        spent = self._spent.get(row.request_id)
        return 0.0 if spent is None else spent.waiting + spent.passed_over
