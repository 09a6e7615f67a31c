"""What an artifact is, and what sets two apart: read without torch, executorch, numpy or mlx, and without weights.

================  ==============================================================
``facts``         the report's values; ``report`` gathers them from open files
``opening``       a ``.pte``, a ``.ptd`` or a bundle's directory
``names``         tensors' names without what exporters put around them
``uses``          what an MLX graph does with its constants
``tensors``       what is stored, once each; ``accounting``: where bytes go
``published``     values of constant methods
``signature``     what inputs and outputs are called
``listing``       instructions as text; ``ssa`` numbers what they compute, ``mlx_dtypes`` says of which dtype
``document``      a report as JSON; ``text``: for people, with ``drawing``; ``page``: as HTML, with ``treemap``
``changes``       two artifacts compared, and ``changes_text`` for people
``matching``      which tensor is which, ``rewiring`` which instruction, by ``alignment`` of sequences
``contents``      whether bytes are the same
================  ==============================================================
"""

from pipeline.anatomy.report import inspect

__all__ = ["inspect"]
