"""Compiled programs of rounds and evaluations, and what they are called with.

- A block of rounds is a loop with a traced number of turns that writes into preallocated records. Blocks of any length
  share one compilation.
- The leading axis of a program is runs: seeds, or cells x seeds of a sweep. Traced leaves in which cells differ get
  that axis (``Spec.varied``), equal leaves stay shared, and stacked tables are read by ``run % seeds``. Cells share a
  program if their plans have the same static half.
- ``Plan`` splits its arguments by type: floats and arrays are traced; ints, strings, bools and functions are static.
"""
