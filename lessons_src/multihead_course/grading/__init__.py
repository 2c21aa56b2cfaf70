"""Homework: handed-in notebooks into marks, feedback, exports and a report of the class.

A submission never meets what it is judged by. It runs in a process of its own (`worker`, behind the guards of
`sandbox`); inputs go in and results come out as plain data (`wire`), and the comparison is made here.

    handed_in -> judge -> marks -> feedback, export, gradebook, report
                   |
    remote -> forking -> wire -> worker         (what runs elsewhere, and the line to it)

`batch` does that for a whole course folder, with several `judges` at a time.
"""
