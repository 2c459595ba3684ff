"""Queue, the public interface: its settings, the parts that are built for it, and the loop over batches."""
