"""Executes the MLX delegate of a ``.pte`` on ``mlx.core``.

============  ==================================================================
``executor``  a program bound to its constants and cache, called with arrays
``plan``      turns a chain of instructions into calls, once, at load
``ops``       what each operator node computes, by family
``dtypes``    ExecuTorch's scalar types in MLX
============  ==================================================================
"""
