"""Executes the MLX delegate of a ``.pte`` on ``mlx.core``.

============  ==================================================================
``executor``  a program bound to its constants and cache, called with arrays
``plan``      turns a chain of instructions into calls, once, at load
``body``      the main chain with a slot for every result, to be rewritten
``fold``      what constants alone decide, computed at load
``fuse``      the rules that put one step in place of several; ``shapes``: what they may rely on
``straight``  a body as one Python function
``ops``       what each operator node computes, by family
``dtypes``    ExecuTorch's scalar types in MLX
============  ==================================================================
"""
