"""What each step does, and the process it runs in.

============  ================================================================
``fetch``     a source -> a snapshot: configuration, weights, tokenizer
``quantize``  a snapshot -> quantized weights, where the manifest asks for them
``build``     a snapshot, and quantized weights -> ``model.pte``: load, export, lower, write
``verify``    ``model.pte`` -> ``metadata.json``, or the findings that stop it
``smoke``     ``model.pte`` and snapshot -> ``smoke.json``, by decoding both
``bundle``    all of them -> what a user ships
``process``   runs a heavy step in a process of its own
============  ================================================================

A step is a function of its spec and its inputs' files and writes to an empty directory it is given; it knows neither
the store nor doit.
"""
