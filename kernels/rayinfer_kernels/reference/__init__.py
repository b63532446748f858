"""The shortest correct torch for every operation: the truth that faster kernels are tested against."""
