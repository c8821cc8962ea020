"""A server that speaks S3's protocol, on this machine and in this process; its buckets are empty ones."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

SECRET = "s3cr3t-that-must-not-be-written-down"
"""the secret access key of everybody who uses it"""


class S3:
    """One server and the bucket that a test has for itself."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        import logging

        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        host, self.port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{self.port}"
        self.bucket = ""

    @property
    def environment(self) -> Mapping[str, str]:
        """What a person has set who uses it."""
        return {
            "AWS_ACCESS_KEY_ID": "AKIATESTTESTTEST",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            # Retries of the client's own would only be waited for.
            "AWS_MAX_ATTEMPTS": "1",
        }

    def client(self) -> Any:
        """boto3's own, so that nothing of ours vouches for what is there."""
        import boto3

        told = self.environment
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=told["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

    def new_bucket(self) -> str:
        """The name of an empty bucket."""
        self.bucket = f"bucket-{next(self._numbers)}"
        self.client().create_bucket(Bucket=self.bucket)
        return self.bucket

    def put(self, key: str, content: bytes) -> None:
        self.client().put_object(Bucket=self.bucket, Key=key, Body=content)

    def objects(self, prefix: str = "") -> dict[str, int]:
        """{key: size} of what is in the bucket."""
        told = self.client().list_objects_v2(Bucket=self.bucket, Prefix=prefix)
        return {entry["Key"]: entry["Size"] for entry in told.get("Contents", [])}

    def get(self, key: str) -> bytes:
        """An object's bytes."""
        content: bytes = self.client().get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return content

    def stop(self) -> None:
        """No more answers; its buckets are gone."""
        self._server.stop()
