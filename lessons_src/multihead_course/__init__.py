"""The `course` command: lessons into notebooks."""
