"""Benchmarks of the checkpoint engine, in the wheel beside what they measure; `ett bench` finds them by name."""
