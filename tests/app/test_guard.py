"""Other sites cannot use the app through the browser of its user."""

from importlib import resources

import app_tools
import pytest

from lrpx.app.guard import POLICY, Guard, host_name
from lrpx.app.server import PAGE

QUESTION = {"text": app_tools.TEXT}


@pytest.fixture(scope="module")
def client():
    return app_tools.client(app_tools.desk())


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "LOCALHOST", "[::1]:7860", "192.168.1.5:80"])
def test_this_machine(client, host):
    assert client.get("/api/about", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "localhost.evil.example", "", "a@localhost",
             "localhost:x", "[::1", "localhost/a", "localhost?a"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/api/about"])
def test_another_name_is_refused(client, host, path):
    answer = client.get(path, headers={"host": host})
    assert answer.status_code == 403
    assert "--allow-host" in answer.json()["error"]


def test_a_name_that_is_allowed():
    guard = Guard(None, ["Box.local"])
    assert guard.names == {"localhost", "box.local"}
    assert host_name("BOX.local:80") == "box.local"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
    ],
)
def test_questions_of_other_sites_are_refused(client, headers):
    answer = client.post("/api/explain", json=QUESTION, headers=headers)
    assert answer.status_code == 403
    assert "map" not in answer.text


def test_questions_of_the_page_are_answered(client):
    headers = {"origin": "http://127.0.0.1:7860", "sec-fetch-site": "same-origin"}
    assert app_tools.one(app_tools.events(client, "explain", QUESTION, headers=headers), "maps")


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/about", "/nothing", "/../pyproject.toml", "/page/app.js"])
def test_every_answer_has_the_policy_and_no_other_file_is_there(client, path):
    answer = client.get(path)
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answer.headers
    assert (answer.status_code == 200) == (path in ("/", "/app.js", "/api/about"))


def test_a_preflight_is_not_answered(client):
    headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    assert client.options("/api/explain", headers=headers).status_code >= 400


def test_the_policy_loads_nothing_from_elsewhere(client):
    assert "default-src 'none'" in POLICY
    assert not any(word in POLICY for word in ("http", "unsafe", "*"))
    page = client.get("/").text
    assert "<style" not in page
    assert "http://" not in "".join(client.get(path).text for path in PAGE)
    assert "https://" not in page


def test_every_file_of_the_page_is_served():
    files = resources.files("lrpx.app") / "page"
    assert sorted(name for name, _ in PAGE.values()) == sorted(file.name for file in files.iterdir())
