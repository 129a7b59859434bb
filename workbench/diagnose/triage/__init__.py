"""Many incidents of many runs: read from a store, ranks put together, grouped by fault."""
