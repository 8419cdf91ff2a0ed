"""Models behind one small protocol: questions in, answers out, as they come.

| kind | what answers |
|---|---|
| `native` | a checkpoint that our own decoder runs (`native.py`; a family is a line in its table) |
| `endpoint` | any OpenAI-compatible endpoint |
| `answers` | kernels written elsewhere: a folder, JSON or JSONL |
| `transformers` | whatever `transformers` loads (extra `baselines`) |
"""

from dice.evaluate.models.base import Answer, Model, Question

__all__ = ["Answer", "Model", "Question"]
