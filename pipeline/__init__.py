"""pte-pipeline: from a manifest to a verified, decoded ExecuTorch artifact.

The map of the house. Things flow one way::

    manifest.yaml -> Manifest -> steps with keys -> doit tasks -> objects in the store -> bundle

==============  ==================================================================
``errors``      every exception raised on purpose
``manifest``    YAML and schema -> a frozen ``Manifest``
``plan``        manifests -> steps with keys; pure, reads no model and no library
``store``       content-addressed objects and receipts
``pte``         the ``.pte`` container and the MLX graph in it, read without torch
``verify``      what a ``.pte`` publishes against schema, manifest and graph
``model``       the torch side: checkpoint, attention, cache geometry, export, lowering
``delegate``    executes an MLX graph on ``mlx.core``
``runtime``     decoding: the off-graph KV cache, prefill and greedy decode
``steps``       what each step does, and the process it runs in
``tasks``       steps -> doit tasks; the only module that knows doit
``cli``         the ``pte`` command
==============  ==================================================================

``errors``, ``manifest``, ``plan``, ``store``, ``pte`` and ``verify`` never import torch,
executorch, transformers, numpy or mlx: that keeps ``doit`` with nothing to do and ``pte verify``
instant, and installable where those libraries are not.
"""
