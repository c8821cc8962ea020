"""The one process that acts for a job: detached from every terminal, replaceable at any moment.

`python -m launcher.coordinator FOLDER` folds the events that are there and goes on from them.
"""
