"""Engine loop: synchronous engine, its thread, its life cycle and its output queues."""
