"""A proxy that has a node below a path of its own, as `location /broker/ { proxy_pass http://node/; }` of nginx."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

PATH = "/broker/"
_OF_ONE_CONNECTION = {"connection", "transfer-encoding"}


@contextmanager
def below_a_path(port: int) -> Generator[str]:
    """The address of a node at this HTTP port, as browsers see it."""

    class Proxy(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            if not self.path.startswith(PATH):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            node = HTTPConnection("127.0.0.1", port)
            node.request(self.command, self.path.removeprefix(PATH[:-1]), body, dict(self.headers))
            answer = node.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_ONE_CONNECTION:
                    self.send_header(name, value)
            self.end_headers()
            with suppress(OSError, HTTPException):  # either side has ended a stream
                while part := answer.read1():
                    self.wfile.write(part)
            node.close()

        def log_message(self, *_: object) -> None:
            """Log no requests."""

    for method in ("GET", "PUT", "POST", "DELETE"):
        setattr(Proxy, f"do_{method}", Proxy.pass_on)

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{PATH}"
        finally:
            server.shutdown()
            thread.join()
