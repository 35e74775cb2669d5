"""DiagnoseError                   carries the exit code of the command
├── TargetError                  the target cannot be reached or does not answer as a metrics endpoint (exit 2)
│   ├── ErrorAnswer              it answers, with an HTTP error: something is there, and it is not gone
│   └── NotMetrics               it answers, and with no metrics of an engine that this version reads
├── SourceError                  a file or option cannot be read as what it should be (exit 2)
├── NotEnough                    readable, but too little to judge (exit 3)
└── RecordingCut                 the disk failed while a recording was made; what was written before is kept (exit 3)
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What `stallscope diagnose` tells a script."""

    NOTHING_WRONG = 0
    CAUSE_SUPPORTED = 1
    CANNOT_LOOK = 2
    INSUFFICIENT = 3
    HARD_FAILURE = 4


class DiagnoseError(Exception):
    exit_code = ExitCode.CANNOT_LOOK


class TargetError(DiagnoseError):
    pass


class ErrorAnswer(TargetError):
    pass


class NotMetrics(TargetError):
    pass


class SourceError(DiagnoseError):
    pass


class NotEnough(DiagnoseError):
    exit_code = ExitCode.INSUFFICIENT


class RecordingCut(DiagnoseError):
    exit_code = ExitCode.INSUFFICIENT
