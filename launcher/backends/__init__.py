"""Where a job's coordinator lives.  On local and ssh it is a detached process here; a batch system has its own place."""
