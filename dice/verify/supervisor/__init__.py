"""The trusted process that asks and decides: jobs, evidence, verdicts. Imports no PyTorch."""
