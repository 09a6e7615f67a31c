"""What plain ``doit`` reads; the tasks are made in ``pipeline.tasks``."""

from pipeline.tasks import (
    DOIT_CONFIG,
    task_build,
    task_bundle,
    task_fetch,
    task_quantize,
    task_smoke,
    task_verify,
)

__all__ = ["DOIT_CONFIG", "task_build", "task_bundle", "task_fetch", "task_quantize", "task_smoke", "task_verify"]
