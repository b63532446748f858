"""Plans of steps and their results, as they cross from the scheduler to the workers."""
