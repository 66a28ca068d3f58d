"""What `ett launch script.py` sees of a program that never imports ett (docs/zero_code.md)."""
