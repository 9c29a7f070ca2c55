"""Where `kagzi.codecs.Offload` keeps large payloads: a directory, or a bucket of S3 or of what speaks like it.

A store that is out of reach raises `Unavailable`: starts and signals tell whoever makes them and write nothing, a step
whose result cannot be kept has failed an attempt, and a worker that cannot read what a run needs puts the run off.
"""

from __future__ import annotations

import contextlib
import os
import threading
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from kagzi.errors import InvalidRequest, MissingDependency, Unavailable
from kagzi.ids import entropy
from kagzi.owners import user_name

# What S3 answers if there is no such object. Without the right to list, it says 403 instead of these.
_NO_OBJECT: Final = ("NoSuchKey", "404", "NotFound")
_WHAT_TO_DO: Final = {
    "NoSuchBucket": "there is no such bucket; make it, or name another one",
    "AccessDenied": "these credentials may not do that; allow s3:PutObject, s3:GetObject and, so that a missing object "
    "is known from a forbidden one, s3:ListBucket",
    "403": "these credentials may not do that; allow s3:PutObject, s3:GetObject and s3:ListBucket",
    "InvalidAccessKeyId": "the access key is not known there",
    "SignatureDoesNotMatch": "the secret key is not the one of this access key",
    "ExpiredToken": "the credentials have expired",
    "PermanentRedirect": "the bucket is in another region; say region=",
    "AuthorizationHeaderMalformed": "the bucket is in another region; say region=",
}


class BlobStore(Protocol):
    """Where `Offload` keeps large payloads. A key is the hash of its data: putting the same twice is harmless."""

    def put(self, key: str, data: bytes) -> None:
        """Returns when the data is durable. Unavailable if that is not possible now."""
        ...

    def get(self, key: str) -> bytes:
        """KeyError if there is none. Unavailable if nobody can tell now."""
        ...


class DirectoryBlobs:
    """Payloads as files below a directory that all processes of the app see. Nothing is deleted by itself.

    What is made here is for its owner alone: files 0600, directories 0700. To share it with other users, make the
    directory and give them rights to it by its ACL.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given: Any = path
        if not isinstance(given, (str, os.PathLike)) or not os.fspath(given):
            raise InvalidRequest(f"path must be that of a directory, not {path!r:.100}")
        self._path = Path(path)

    def __repr__(self) -> str:
        return f"DirectoryBlobs({str(self._path)!r})"

    def put(self, key: str, data: bytes) -> None:
        file = self._file(key)
        try:
            if not file.exists():
                self._write(file, data)
            # A name is durable when its directory is, also one that somebody else has just made: the database is about
            # to commit what refers to it.
            _sync_directory(file.parent)
        except OSError as error:
            raise self._out_of_reach("written to", error) from error

    def get(self, key: str) -> bytes:
        try:
            return self._file(key).read_bytes()
        except FileNotFoundError as error:
            if not self._path.is_dir():  # not mounted: nothing is known of the file
                raise self._out_of_reach("read", error) from error
            raise KeyError(key) from None
        except OSError as error:
            raise self._out_of_reach("read", error) from error

    def _write(self, file: Path, data: bytes) -> None:
        made = not file.parent.is_dir()
        for directory in (self._path, file.parent):
            if not directory.is_dir():  # those above it are the user's
                directory.parent.mkdir(parents=True, exist_ok=True)
                directory.mkdir(mode=0o700, exist_ok=True)
        # Under another name first, and on the disk: whoever finds the file finds all of it.
        partial = file.with_name(f"{file.name}.{entropy(8).hex()}")
        try:
            with open(partial, "xb", opener=_for_owner) as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            partial.replace(file)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        if made:
            _sync_directory(self._path)

    def _file(self, key: str) -> Path:
        return self._path / key[:2] / key

    def _out_of_reach(self, what: str, error: OSError) -> Unavailable:
        return Unavailable(
            f"the directory of large payloads {self._path} cannot be {what}: {error.strerror or error}. It must be "
            f"there, with room in it, and this user ({user_name()}) be allowed to read and write it"
        )


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class S3Blobs:
    """Payloads as objects of a bucket, in S3 or what speaks like it; needs `kagzi[s3]`. Nothing is deleted by itself.

    >>> Offload(S3Blobs("payloads", prefix="shop/"))
    >>> Offload(S3Blobs("payloads", endpoint_url="http://minio:9000"))

    Credentials are found where boto3 finds them: the environment, `~/.aws`, the machine's role. A `client` of your own,
    as `boto3.client("s3", ...)` returns it, comes before all else; it is used by several threads.
    """

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        endpoint_url: str | None = None,
        region: str | None = None,
        client: Any = None,
    ) -> None:
        names: tuple[Any, Any] = (bucket, prefix)
        if not isinstance(names[0], str) or not bucket or "/" in bucket:
            raise InvalidRequest(f'bucket must be the name of a bucket, such as "payloads", not {bucket!r:.100}')
        if not isinstance(names[1], str) or prefix.startswith("/"):
            raise InvalidRequest(f'prefix must be text such as "shop/", not {prefix!r:.100}')
        if client is not None and (endpoint_url is not None or region is not None):
            raise InvalidRequest("endpoint_url and region are for a client that is made here; leave them or client out")
        if client is not None and not callable(getattr(client, "put_object", None)):
            raise InvalidRequest(f'client must be one of S3, as boto3.client("s3") returns it, not {client!r:.100}')
        try:
            self._boto3: Any = import_module("boto3")
            self._config: Any = import_module("botocore.config").Config
            self._errors: Any = import_module("botocore.exceptions")
        except ModuleNotFoundError as error:
            raise MissingDependency('boto3 is not installed. Run: pip install "kagzi[s3]"') from error
        self._bucket = bucket
        self._prefix = prefix
        self._where = {"endpoint_url": endpoint_url, "region_name": region}
        self._given = client
        self._guard = threading.Lock()
        self._made: tuple[int, Any] | None = None  # with the process it was made in: connections are not for two

    def __repr__(self) -> str:
        return f"S3Blobs({self._bucket!r}, prefix={self._prefix!r})"

    def put(self, key: str, data: bytes) -> None:
        try:
            self._client().put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data)
        except (self._errors.BotoCoreError, self._errors.ClientError) as error:
            raise self._out_of_reach("written to", error) from error

    def get(self, key: str) -> bytes:
        try:
            answer = self._client().get_object(Bucket=self._bucket, Key=self._prefix + key)
            return bytes(answer["Body"].read())
        except self._errors.ClientError as error:
            if _code(error) in _NO_OBJECT:
                raise KeyError(key) from None
            raise self._out_of_reach("read", error) from error
        except (self._errors.BotoCoreError, OSError) as error:  # the latter in the middle of an object
            raise self._out_of_reach("read", error) from error

    def _client(self) -> Any:
        if self._given is not None:
            return self._given
        with self._guard:
            if self._made is None or self._made[0] != os.getpid():
                # The caller waits, and often an event loop with it: give up in time, and have the run put off.
                config = self._config(
                    connect_timeout=3, read_timeout=20, retries={"max_attempts": 2, "mode": "standard"}
                )
                # A session of its own: the one that boto3 shares is not for several threads.
                client = self._boto3.session.Session().client("s3", config=config, **self._where)
                self._made = (os.getpid(), client)
            return self._made[1]

    def _out_of_reach(self, what: str, error: Exception) -> Unavailable:
        advice = _WHAT_TO_DO.get(_code(error))
        if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
            advice = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
        told = f"{error} ({advice})" if advice else str(error)
        return Unavailable(f"the bucket of large payloads {self._bucket!r} cannot be {what}: {told}")


def _code(error: Exception) -> str:
    answer: Any = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""


def _sync_directory(path: Path) -> None:
    if os.name == "nt":  # which cannot open one, and needs it not
        return
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
