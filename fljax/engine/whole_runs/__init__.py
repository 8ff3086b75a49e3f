"""Whole runs: start, rounds, evaluation and measure of each run are one program, and only measures leave the devices.

Rows of a program that are not used cost nothing, so blocks of any length share it. Blocks end after some seconds, since
the heap grows while a program runs. On a CPU a device computes one run after another, so the bits of a run depend
neither on other runs nor on its block or device.
"""
