"""Many ranks: who this rank is, one decision for all, and how the others learn of a rank that ends.

* ``place``: rank and world; data, tensor and pipeline rank.
* ``codes``: a gate's result as a short row of ordered numbers that one collective can reduce.
* ``together``: the decision itself, at which gates it is made, and what all ranks then do.
* ``watch``: news between ranks through the store, so that nobody waits for a rank that raised.
* ``reduction``, ``sharded``: gradients looked at before they are reduced (DDP, FSDP2).
* ``buffers``: the buffers that the inner module used (DDP broadcasts them within forward).
"""
