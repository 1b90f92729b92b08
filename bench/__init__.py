"""Benchmarks. Each prints ratios whose two sides were measured in one run."""
