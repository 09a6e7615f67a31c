"""What an artifact is, and what sets two apart: read without torch, executorch, numpy or mlx, and without weights.

================  ==============================================================
``facts``         the report's values; ``report`` gathers them from open files
``opening``       a ``.pte``, a ``.ptd`` or a bundle's directory
``names``         tensors' names without what exporters put around them
``uses``          what an MLX graph does with its constants
``tensors``       what is stored, once each; ``accounting``: where bytes go
``published``     values of constant methods
``listing``       instructions as text; ``ssa`` numbers what they compute
``changes``       two artifacts compared; ``alignment``: sequences put side by side
``document``      a report as JSON; ``text``: for people; ``page``: as HTML
================  ==============================================================
"""

from pipeline.anatomy.report import inspect

__all__ = ["inspect"]
