"""A diagnosis as the dashboard shows it: the answer, five facts, the account, the protocol, the next command. Plain data."""

from dataclasses import dataclass

from diagnose.errors import ExitCode

NUM_FACTS = 5


@dataclass(frozen=True, slots=True)
class VerdictRow:
    name: str
    verdict: str
    mark: str
    """One or two characters, so that the list reads without colours."""
    text: str
    """Its first piece of evidence, or what it lacks."""
    evidence: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]
    """Measurement that would decide, and its command."""
    benign: bool
    primary: bool


@dataclass(frozen=True, slots=True)
class ProtocolRow:
    name: str
    done: bool
    found: str
    command: str


@dataclass(frozen=True, slots=True)
class DecisionStep:
    text: str
    command: str

    @property
    def changes_target(self) -> bool:
        """Whether its command does something to the target other than read."""
        return " -X POST" in self.command or " -X DELETE" in self.command


@dataclass(frozen=True, slots=True)
class PartView:
    """One part of a mean inter-token gap."""

    label: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class AccountView:
    name: str
    total_seconds: float
    basis: str
    parts: tuple[PartView, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one diagnosis of one window."""

    made_unix: float
    start: float
    end: float
    trailing: bool
    """Of the latest seconds; otherwise of the window that a person marked."""
    headline: str
    exit_code: int
    primary: str
    idle: bool
    facts: tuple[str, ...]
    verdicts: tuple[VerdictRow, ...]
    decision: str
    decision_text: str
    steps: tuple[DecisionStep, ...]
    trade: str
    accounts: tuple[AccountView, ...]
    protocol: tuple[ProtocolRow, ...]
    warnings: tuple[str, ...]
    has_baseline: bool

    @property
    def next_command(self) -> str:
        """The first command that the decision, or else the protocol, asks for."""
        for step in self.steps:
            if step.command:
                return step.command
        return next((row.command for row in self.protocol if not row.done), "")

    @property
    def severity(self) -> int:
        """0 nothing wrong .. 3 hard failure: for ordering targets."""
        order = {ExitCode.NOTHING_WRONG: 0, ExitCode.INSUFFICIENT: 1, ExitCode.CAUSE_SUPPORTED: 2}
        return order.get(ExitCode(self.exit_code), 3) if not self.idle else 0
