"""Claimed jobs: what holds them, their outcomes, and the settle that writes these."""
