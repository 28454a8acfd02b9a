"""Exports on the Hugging Face hub.

Of a repository, only the files of an export are downloaded: parameters in the format of
safetensors, a config and a card, none of which is executed.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gtrxl_jax.extras import import_extra
from gtrxl_jax.runs.card import CARD
from gtrxl_jax.runs.directory import Folder, params_path

FILES = ("config.json", "params.safetensors", CARD)
"""The files of an export."""
REPOSITORY = r"[\w.-]+/[\w.-]+"


def download(name: str) -> Path:
    """Return the folder of an export's files, which are downloaded if they are new.

    Args:
      name: `owner/name`, or with a revision `owner/name@v1`.

    Raises:
      ValueError: if the name is invalid.
      FileNotFoundError: if there is no such repository, or it holds no export.
      ConnectionError: if the hub cannot be reached, and the files have not been downloaded before.
      ModuleNotFoundError: if the extra "hub" is not installed.
    """
    found = re.fullmatch(rf"({REPOSITORY}?)(?:@([\w./-]+))?", name)
    if not found:
        raise ValueError(f"hf://{name} is no address of an agent: use hf://owner/name")
    repository, revision = found.groups()
    address = f"hf://{repository}"
    with _errors(address):
        path = _library().snapshot_download(repository, revision=revision, allow_patterns=FILES)
    if not params_path(path).exists():
        raise FileNotFoundError(f"{address} holds no agent: it has no params.safetensors")
    return Path(path)


def require_token(repository: str) -> None:
    """Raise if nothing can be uploaded to a repository.

    Raises:
      ValueError: if its name is invalid.
      PermissionError: if there is no token.
      ModuleNotFoundError: if the extra "hub" is not installed.
    """
    if not re.fullmatch(REPOSITORY, repository):
        raise ValueError(f"repository must be owner/name, not {repository!r}")
    if not _library().get_token():
        raise PermissionError(
            "the hub needs a token to write to a repository: run hf auth login, or set HF_TOKEN"
        )


def upload(folder: Folder, repository: str, *, private: bool = False) -> str:
    """Upload a folder to a repository, which is created if missing; return the commit's address.

    Raises:
      ValueError, PermissionError, ModuleNotFoundError: see `require_token`; or if the hub does not
        allow it.
      ConnectionError: if the hub cannot be reached.
    """
    require_token(repository)
    api = _library().HfApi()
    with _errors(f"hf://{repository}"):
        # None leaves it to the settings of the owner.
        api.create_repo(repository, private=private or None, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Upload an agent of gtrxl_jax"
        )
    return str(commit.commit_url)


@contextlib.contextmanager
def _errors(address: str) -> Iterator[None]:
    """Turn the errors of the hub's library into ones of a single line."""
    errors = _library().errors
    try:
        yield
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise FileNotFoundError(
            f"{address} does not exist, or is private ({_line(error)}): check its name, or set "
            "HF_TOKEN"
        ) from None
    except errors.HfHubHTTPError as error:
        if getattr(error.response, "status_code", 0) in (401, 403):
            raise PermissionError(
                f"{address}: {_line(error)}: use a token that may write there"
            ) from None
        raise ConnectionError(f"{address}: {_line(error)}: try again later") from None
    except Exception as error:
        # Not in the local cache either.
        missing = isinstance(error, errors.LocalEntryNotFoundError)
        if not missing and "httpx" not in type(error).__module__:
            raise
        raise ConnectionError(
            f"{address}: the hub cannot be reached ({_line(error.__cause__ or error)}): connect to "
            "the internet"
        ) from None


def _line(error: BaseException) -> str:
    """Return the first line of an error."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _library() -> Any:
    import_extra("huggingface_hub.errors", "hub", "an address on the hub")
    return import_extra("huggingface_hub", "hub", "an address on the hub")
