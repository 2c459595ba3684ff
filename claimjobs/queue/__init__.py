"""Queue, the front door: what a user chose, what was built for it, and the loop over batches."""
