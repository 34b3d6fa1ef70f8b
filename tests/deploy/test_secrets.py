"""Secrets are made once, reach the services as files, and open no more than they should."""

import base64
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

from outrider_planner.settings import PlannerSettings
from outrider_planner.store.base import Batch, Page, Value
from outrider_planner.store.redis import RedisStore
from outrider_router.settings import RouterSettings
from outrider_runtime.settings import ConfigurationError
from tests.support.redis_server import RedisServer

SCRIPT = Path(__file__).resolve().parents[2] / "deploy/make_secrets.py"


def make(*arguments: str, **environment: str) -> str:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


def contents(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_made_once_and_kept(tmp_path: Path) -> None:
    make(str(tmp_path))
    before = contents(tmp_path)
    make(str(tmp_path))
    assert contents(tmp_path) == before
    assert len(before) == 5
    assert len(before[str(tmp_path / "services/outrider_token")]) >= 40


def test_given_ones_are_used(tmp_path: Path) -> None:
    make(str(tmp_path), OUTRIDER_ROUTER_API_KEYS="one,two", OUTRIDER_TOKEN="")
    assert (tmp_path / "clients/outrider_router_api_keys").read_text() == "one,two"
    assert len((tmp_path / "services/outrider_token").read_text()) >= 40


def test_an_external_store_is_named_instead_of_the_bundled_one() -> None:
    given = "rediss://user:password@store.example:6380/0"
    text = make("--kubernetes", OUTRIDER_PLANNER_REDIS_URL=given)
    store = {each["metadata"]["name"]: each["data"] for each in yaml.safe_load_all(text)}[
        "outrider-store"
    ]
    assert base64.b64decode(store["outrider_planner_redis_url"]).decode() == given


def test_services_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(str(tmp_path), OUTRIDER_ROUTER_API_KEYS="one,two")
    monkeypatch.setenv("OUTRIDER_SECRETS_DIR", f"{tmp_path}/services:{tmp_path}/clients")
    router = RouterSettings()
    token = (tmp_path / "services/outrider_token").read_text()
    assert router.token_text == token
    assert [key.get_secret_value() for key in router.api_keys] == ["one", "two"]
    assert token not in router.masked()
    monkeypatch.setenv("OUTRIDER_TOKEN", "of the environment")
    assert RouterSettings().token_text == "of the environment"


def test_a_missing_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_SECRETS_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="nowhere"):
        RouterSettings()


def test_kubernetes_gets_the_same_zones() -> None:
    manifests = list(yaml.safe_load_all(make("--kubernetes")))
    assert [each["metadata"]["name"] for each in manifests] == [
        "outrider-services",
        "outrider-clients",
        "outrider-store",
    ]
    assert all(each["kind"] == "Secret" and each["data"] for each in manifests)


@pytest.mark.redis
async def test_the_planner_can_work_with_its_rights_and_nobody_else_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(str(tmp_path))
    server = RedisServer(tmp_path, "redis", "--aclfile", str(tmp_path / "store/users.acl"))
    server.start()
    try:
        stranger = Redis(port=server.port)
        assert stranger.ping()
        with pytest.raises(NoPermissionError):
            stranger.get("outrider:v1:{x}:value")
        stranger.close()
        monkeypatch.setenv("OUTRIDER_SECRETS_DIR", f"{tmp_path}/services:{tmp_path}/store")
        url = PlannerSettings(store="redis").redis_url.get_secret_value()
        own = url.replace("@valkey:6379", f"@127.0.0.1:{server.port}")
        await does_all_a_planner_does(own)
        planner = Redis.from_url(own)
        for refused in (lambda: planner.get("other"), planner.flushall, planner.config_get):
            with pytest.raises((NoPermissionError, ResponseError), match=r"(?i)permission"):
                refused()
        planner.close()
    finally:
        server.stop()


async def does_all_a_planner_does(url: str) -> None:
    """Loads the functions, then sums, values and logs, each written and read."""
    store = RedisStore(url)
    try:
        await store.ping()
        assert await store.add("scope", Batch("writer", 1, {"a:n": 2}))
        assert [dict(bucket) for bucket in await store.buckets("scope")] == [{"a:n": 2}]
        value = Value(1, "text")
        assert await store.keep("key", value, 60.0) == value
        assert await store.kept("key") == value
        assert await store.append("log", Page("writer", 1, ["entry"]), 10)
        assert [text for _, text in await store.entries("log", "", 10)] == ["entry"]
    finally:
        await store.close()
