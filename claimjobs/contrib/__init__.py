"""What the core does not know: each file is for itself, and uses the seams of the core that are open to users."""
