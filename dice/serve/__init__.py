"""`dice serve`: an OpenAI-compatible server over the engine, which can also show how a text is denoised, and a page."""
