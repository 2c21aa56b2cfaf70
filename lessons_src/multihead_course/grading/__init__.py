"""Homework: handed-in notebooks into marks, feedback, exports and a report of the class.

A submission never meets what it is judged by. It runs in a process of its own (`worker`, behind the guards of `sandbox`);
the exercises' inputs go in and results come out as plain data (`wire`); `judge` compares them here (`remote` is the
line between the two). `batch` does that for a whole course folder and keeps the `marks`.
"""
