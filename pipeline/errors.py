"""Every exception the pipeline raises on purpose.

    PipelineError
    ├── UsageError       the command line names what is not there
    ├── ManifestError    the manifest asks for something wrong or impossible
    ├── FetchError       the model cannot be brought here as pinned
    ├── ExportError      the model cannot be exported and stay right
    ├── LowerError       the exported program cannot become one delegate
    ├── PteError         a .pte or .ptd is not a file we can read
    ├── ContractError    a runner's contract is not known, or its schema says nothing that can be held to
    ├── VerifyError      a .pte can be read, and what it publishes is wrong
    ├── DelegateError    an MLX graph cannot be loaded or executed
    ├── CacheError       a KV cache refuses a step or a configuration
    ├── SamplingError    no token can be chosen as asked
    ├── TextError        a tokenizer or chat template cannot be used, or not for this text
    ├── SmokeError       the artifact decodes, and not as its model does
    ├── DependencyError  a library of an optional extra is not installed
    ├── RequestError     a server is asked for what it does not do, or not now
    ├── StoreError       stored bytes are missing or are not what was stored
    └── StepError        a step's process died or failed outside our own errors

A message reads *where: what was found; what was expected. What to do.* The command
line prints it as it stands and exits; anything else that escapes is a bug of ours.
"""

from __future__ import annotations


class PipelineError(Exception):
    """Base of all errors meant for a person to read."""


class UsageError(PipelineError):
    """A command line asks for what cannot be had; nothing was done."""


class ManifestError(PipelineError):
    """One or more mistakes in manifests, all reported at once.

    ``problems`` holds one ``file:line: field is X; expected Y`` sentence per mistake.
    """

    def __init__(self, problems: list[str]) -> None:
        assert problems, "a ManifestError without a problem"
        super().__init__("\n".join(problems))
        self.problems = problems


class FetchError(PipelineError):
    """The model's files cannot be had as the manifest pins them."""


class ExportError(PipelineError):
    """The model uses something the exported program could not honour."""


class LowerError(PipelineError):
    """The exported program does not become exactly one delegate."""


class PteError(PipelineError):
    """The bytes are not a ``.pte`` or ``.ptd`` this reader can trust."""


class ContractError(PipelineError):
    """There is no such contract, or its schema cannot be used; names the file and the place in it."""


class VerifyError(PipelineError):
    """What the ``.pte`` publishes contradicts a schema, the manifest or its own graph."""


class DelegateError(PipelineError):
    """An MLX delegate cannot be loaded, or one of its instructions cannot run."""


class CacheError(PipelineError):
    """A KV cache refuses a configuration or a step; nothing was written."""


class SamplingError(PipelineError):
    """A setting is out of its range, or the logits choose no token."""


class TextError(PipelineError):
    """A tokenizer or chat template is missing, damaged or foreign, or cannot read or render a text."""


class SmokeError(PipelineError):
    """The decoded ``.pte`` differs from its model, or from what the manifest expects."""


class DependencyError(PipelineError):
    """What was asked for needs a library that an optional extra brings."""


class RequestError(PipelineError):
    """A request that a server does not answer. ``status`` is HTTP's, ``param`` the field that is at fault, if one is.

    ``code`` is a word for programs, and ``kind`` the error's type, both in OpenAI's terms.
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def kind(self) -> str:
        return "invalid_request_error" if self.status < 500 else "server_error"


class StoreError(PipelineError):
    """Stored bytes are missing, or are not the bytes that were stored."""


class StepError(PipelineError):
    """A step's process failed in a way no other error describes; names its log file."""
