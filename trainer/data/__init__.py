"""Training data: Criteo's file format, read in an order that is a pure function of files and seed; and a generator."""
