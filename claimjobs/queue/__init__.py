"""Queue, the public interface: its settings, the parts that are built for it, and the loop over batches.

queue.py has what a consumer and a producer call, operations.py what an operator calls. consumer.py claims batches, and
builds what that needs. batch_loop.py claims batch after batch, and sleeps without work. job_pool.py handles many jobs
at once, by threads or tasks (executors.py). row_isolation.py claims around a row that the database refuses to give.
"""
