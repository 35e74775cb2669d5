"""RunbookError
├── DrillError          a drill could not induce its condition; says at which step and why
├── ExperimentError     a comparison cannot be set up or went on against its own rules; says what to change
├── AdminError          what changes a target does not answer as it should: what it did is not known
│   └── AdminRefused    it answered with an error: nothing was changed
├── ConfigError         runbooks.toml is not what it should be; names the place and what is accepted
├── JournalError        the journal cannot be read or written: nothing may be done that it would not hold
├── Interrupted         the receiver stops: what was under way is taken up by the next one
└── Refused             an act is not done, for a reason that the incident's document shows
"""


class RunbookError(Exception):
    pass


class DrillError(RunbookError):
    pass


class ExperimentError(RunbookError):
    pass


class AdminError(RunbookError):
    pass


class AdminRefused(AdminError):
    pass


class ConfigError(RunbookError):
    pass


class JournalError(RunbookError):
    pass


class Refused(RunbookError):
    pass


class Interrupted(RunbookError):
    pass
