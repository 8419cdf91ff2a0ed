"""Language models behind an OpenAI-compatible endpoint: asked politely, paid for knowingly, never asked twice.

    async with Endpoint(RequestSettings(base_url, model), key, folder / "requests.jsonl") as endpoint:
        async for reply in endpoint.ask(requests):
            ...

or, from code that is not asynchronous, `with Replies(endpoint, requests) as replies: for reply in replies: ...`.
"""
