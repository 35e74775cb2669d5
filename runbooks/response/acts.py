"""All acts that there are; `do` in runbooks.toml names one."""

from runbooks.response.admin_acts import CapSequences, Drain, LowerBudget, ResetPrefixCache, Resume
from runbooks.response.other_acts import CallWebhook, Capture, RunCommand

Act = LowerBudget | CapSequences | ResetPrefixCache | Drain | Resume | Capture | CallWebhook | RunCommand
