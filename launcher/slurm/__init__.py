"""What Slurm says, read once: host lists, allocations, job states, and the questions put to its commands.

Everything here is a word of Slurm's turned into a typed value.  Nothing here starts a job or a step.
"""
