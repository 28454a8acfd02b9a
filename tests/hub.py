"""A Hugging Face hub in miniature: models by name, on a server of this machine."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_secret"


class Hub:
    """The server: `models` has the files of each, `requests` what was asked of it.

    With TOKEN, clients may write. In a repository named "closed", nobody may.
    """

    def __init__(self):
        self.models, self.private, self.requests = {}, {}, []
        hub = self

        class Handler(_Handler):
            models, private, requests = hub.models, hub.private, hub.requests

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, content, status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def files_of(self, name):
        if name not in self.models:
            self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        return self.models.get(name)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path).strip("/")
        self.requests.append((self.command, path))
        if path.startswith("api/models/"):
            owner, name, *rest = path.removeprefix("api/models/").split("/")
            if (files := self.files_of(f"{owner}/{name}")) is None:
                return
            if rest[:1] == ["tree"]:
                self.answer([_entry(file, content) for file, content in files.items()])
            else:
                siblings = [{"rfilename": file} for file in files]
                self.answer({"id": f"{owner}/{name}", "sha": _sha(files), "siblings": siblings})
            return
        if "/resolve/" not in path:
            self.answer({"error": "no such page"}, 404)
            return
        owner, name, _, _, file = path.split("/", 4)
        if (files := self.files_of(f"{owner}/{name}")) is not None:
            if file not in files:
                self.answer({"error": "no such file"}, 404, X_Error_Code="EntryNotFound")
                return
            etag = f'"{hashlib.sha1(files[file]).hexdigest()}"'
            self.answer(files[file], ETag=etag, X_Repo_Commit=_sha(files))

    def do_POST(self):
        path = unquote(urlsplit(self.path).path).strip("/")
        self.requests.append((self.command, path))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer({"error": "Invalid credentials"}, 401)
            return
        if path == "api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name.endswith("/closed"):
                self.answer({"error": "You may not write here"}, 403)
                return
            self.models.setdefault(name, {})
            self.private[name] = asked.get("private") or asked.get("visibility") == "private"
            self.answer({"url": f"http://{self.headers['Host']}/{name}"})
        elif path == "api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [file["path"] for file in json.loads(body)["files"]]
            mode = {"uploadMode": "regular", "shouldIgnore": False}
            self.answer({"files": [{"path": file, **mode} for file in files]})
        else:
            owner, name = path.removeprefix("api/models/").split("/")[:2]
            files = self.models[f"{owner}/{name}"]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    files[value["path"]] = base64.b64decode(value["content"])
            url = f"http://{self.headers['Host']}/{owner}/{name}/commit/{_sha(files)}"
            self.answer({"success": True, "commitOid": _sha(files), "commitUrl": url})


def _entry(file, content):
    digest = hashlib.sha1(content).hexdigest()
    return {"type": "file", "path": file, "size": len(content), "oid": digest}


def _sha(files):
    digest = hashlib.sha1()
    for file in sorted(files):
        digest.update(file.encode() + files[file])
    return digest.hexdigest()
