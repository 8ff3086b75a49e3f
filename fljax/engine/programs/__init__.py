"""Compiled programs of rounds and evaluations, and what they are called with.

The leading axis of a program is runs: seeds, or cells x seeds of a sweep. Traced leaves in which cells differ get that
axis (``Spec.varied``), equal leaves stay shared, and stacked tables are read by ``run % seeds``. Floats and arrays of a
``Plan`` are traced; ints, strings, bools and functions are static, and cells share a program if those are equal.
"""
