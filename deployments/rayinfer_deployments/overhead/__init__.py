"""The way between engines and clients, deployed and measured with engines that have no model."""
