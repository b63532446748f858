"""Jobs over ray.data: an engine as a callable class of `map_batches`, and processors made from it."""
