"""Servers for transforms: an author writes one method, and FastAPI, Flask or the standard library serves it.

    class Upper(FastAPIServer):
        def transform(self, data, path, args):
            return data.upper()

    Upper().start("127.0.0.1", 9000)

This package imports neither a web framework nor the store. A framework is imported when its server is created.
"""

from __future__ import annotations

from storage_node.etl.webserver.base import TransformServer
from storage_node.etl.webserver.fastapi_server import FastAPIServer
from storage_node.etl.webserver.flask_server import FlaskServer
from storage_node.etl.webserver.http_server import HTTPMultiThreadedServer

__all__ = ["FastAPIServer", "FlaskServer", "HTTPMultiThreadedServer", "TransformServer"]
