"""EngineError
├── ConfigError          the engine cannot start as asked; says which option and what would work
├── ModelError           weights, tokenizer or geometry cannot be loaded; says from where and what brings them
├── RequestRejected      a request that can never be served; becomes HTTP 400 with `param` and `code`
├── EngineUnavailable    no request can be served now (draining, dead); becomes HTTP 503 with `code`
├── OutOfBlocks          more KV blocks were asked for than are free or reclaimable; nothing was taken
└── InvariantViolation   the policy's books do not add up: a bug, reported with the numbers
"""


class EngineError(Exception):
    """Base of everything this room raises on purpose."""


class ConfigError(EngineError, ValueError):
    pass


class ModelError(EngineError):
    pass


class RequestRejected(EngineError, ValueError):
    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class EngineUnavailable(EngineError):
    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class OutOfBlocks(EngineError):
    pass


class InvariantViolation(EngineError):
    pass
