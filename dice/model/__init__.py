"""The SDAR transformer: module, masks, checkpoints, tokenizer."""
