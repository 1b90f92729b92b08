"""The Python client of a site's HTTP API: `Client`, and `AsyncClient` for event loops."""

from encamp.client.asynchronous import AsyncClient
from encamp.client.synchronous import Client
from encamp.model.errors import Code, EncampError

__all__ = ["AsyncClient", "Client", "Code", "EncampError"]
