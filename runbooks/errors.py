"""RunbookError
└── DrillError      a drill could not induce its condition; says at which step and why
"""


class RunbookError(Exception):
    pass


class DrillError(RunbookError):
    pass
