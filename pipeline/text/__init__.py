"""Text on both sides of a model's tokens; knows neither models nor caches.

=================  ======================================================================================
``tokenizer``      what every tokenizer does; ``loading``: from a directory or file of any format, one of
                   ``huggingface``, ``llama3`` (tiktoken) or ``sentencepiece_model``
``description``    the files beside a tokenizer: names of special pieces, chat template
``template``       a chat template, the model's own or a built-in one, as Transformers renders it
``chat``           messages -> tokens, with no way for a message to speak for another role
``conversation``   turn after turn, with what the cache already holds
``stream``         tokens -> text as they come, never half a character
``stop``           stop strings, held back until they are none
``reply``          the above three as one: a token in, the text that may be shown out
``terminal``       text that cannot drive a terminal
=================  ======================================================================================

Importing any of them loads no library beyond Python's own: those that read a tokenizer or render a template are
imported when one is opened.
"""
