"""RunbookError
├── DrillError          a drill could not induce its condition; says at which step and why
└── ExperimentError     a comparison cannot be set up or went on against its own rules; says what to change
"""


class RunbookError(Exception):
    pass


class DrillError(RunbookError):
    pass


class ExperimentError(RunbookError):
    pass
