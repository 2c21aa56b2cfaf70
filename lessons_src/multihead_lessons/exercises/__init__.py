"""The exercises: what is asked, and what is said to an answer."""
