"""What the lessons show and ask: figures, explorers, quizzes, exercises."""
