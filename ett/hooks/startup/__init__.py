"""A folder for PYTHONPATH, whose only module is the `sitecustomize` that Python loads before a program."""
