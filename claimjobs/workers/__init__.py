"""Consumer processes and the supervisor that starts, watches and replaces them.

supervisor.py starts a process_slot.py for each process, and asks database_threads.py for what it must know of the
queue. process_main.py is what such a process runs: the loop of consumer.py with the functions of handlers.py. The two
talk through supervisor_pipe.py.
"""
