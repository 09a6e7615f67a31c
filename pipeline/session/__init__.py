"""An artifact with its tokenizer: texts in, texts out.

============  ===========================================================================================
``opened``    a bundle or a ``.pte`` with a tokenizer, checked against each other and ready to generate
``answers``   an answer as it is generated, its text and why it ended
``talk``      turn after turn, with what the cache holds; what can be taken back
``report``    what a run cost, as the C++ runner reports it
============  ===========================================================================================
"""
