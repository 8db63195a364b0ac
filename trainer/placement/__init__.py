"""Which cards learn and which generate, and the processes on them, which Ray starts on one node or many."""
