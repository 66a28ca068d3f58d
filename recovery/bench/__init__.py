"""Benchmarks of restores, in the wheel beside what they measure; `ett bench recovery` puts them together."""
