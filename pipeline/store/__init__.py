"""Content-addressed objects and the receipts that name them.

============  =================================================================
``objects``   bytes by their sha256, written whole or not at all
``receipts``  what each finished step was asked and what it left in the store
``digests``   sha256 of files outside the store, remembered by stat
============  =================================================================

One truth for freshness: a step is current when a receipt exists for its key and the store holds its outputs.
"""

from pipeline.store.objects import Object, Store
from pipeline.store.receipts import Receipt

__all__ = ["Object", "Receipt", "Store"]
