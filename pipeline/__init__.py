"""pte-pipeline: from a manifest to a verified, decoded ExecuTorch artifact.

The map of the house. Things flow one way::

    manifest.yaml -> Manifest -> steps with keys -> doit tasks -> objects in the store -> bundle

================  ================================================================
``errors``        every exception raised on purpose
``manifest``      YAML and schema -> a frozen ``Manifest``; with ``yaml_source``, ``schema``, ``schema_problems``
``spec``          what each step is told; ``contract``: what an artifact publishes to a runner
``plan``          manifests -> steps with keys; pure, reads no model and no library
``surroundings``  what the machine adds to keys: library versions, platform, source digests
``store``         content-addressed objects and receipts; ``digest``: sha256 of a file
``pte``           the ``.pte`` container and the MLX graph in it, read without torch
``anatomy``       what an artifact is, and what sets two apart
``evidence``      what one ``.pte`` shows about itself; ``verify`` judges it
``model``         the torch side: checkpoint, quantization, attention, cache geometry, rehearsal, export, proof,
                  lowering
``delegate``      executes an MLX graph on ``mlx.core``
``runtime``       decoding: the off-graph KV cache of one sequence or of many, prefill and decode, sampling, batches
``text``          tokenizers, chat templates, streamed and stopped text; knows neither models nor caches
``session``       an artifact with its tokenizer: texts in, texts out
``serving``       an artifact behind OpenAI's HTTP interface
``steps``         what each step does, and the process it runs in; ``snapshot``: a model's files
``workspace``     plans meet the store: what is current, and how a step is run
``tasks``         steps -> doit tasks; the only module that knows doit; ``progress``: its terminal line
``cli``           the ``pte`` command
================  ================================================================

``errors``, ``manifest``, ``plan``, ``store``, ``pte``, ``anatomy`` and ``verify`` never import torch,
executorch, transformers, numpy or mlx: that keeps ``doit`` with nothing to do and ``pte verify``
instant, and installable where those libraries are not.
"""
