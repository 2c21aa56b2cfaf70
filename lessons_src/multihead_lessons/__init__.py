"""What the lessons show and ask: figures, explorers, quizzes, exercises."""
import torch

# The tensors of the lessons are small: a second thread gains nothing, and on a busy machine it makes a picture wait for it.
torch.set_num_threads(1)
