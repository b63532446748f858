"""Results of predictors by their exact inputs: in memory, shared by equal requests in flight, and in Redis."""
