"""`firstlight up`: a mesh that stays until Ctrl-C, with lines to paste that ask it."""

import asyncio
import shutil
import sys
import threading

from rich.console import Console

from firstlight.infra.demo import start_with_progress
from firstlight.infra.live import watch
from firstlight.infra.mesh import Mesh
from firstlight.infra.running import RunningMesh
from firstlight.shared.config import state_dir

_CHECK_S = 0.5

_USAGE = """
# HTTP/3, at the nearest edge
{command} chat "Why is the sky blue?"

# HTTP/2
{curl}

# Python, with the openai package
{python}"""

_CURL = """\
curl --http2 --cacert '{ca}' {url}/v1/chat/completions \\
  -H 'content-type: application/json' \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hi!"}}]}}'"""

_PYTHON = """\
import ssl, httpx, openai
tls = ssl.create_default_context(cafile={ca!r})
client = openai.OpenAI(
    base_url="{url}/v1", api_key="local", http_client=httpx.Client(verify=tls)
)
question = [{{"role": "user", "content": "Why is the sky blue?"}}]
answer = client.chat.completions.create(model={model!r}, max_tokens=48, messages=question)
print(answer.choices[0].message.content)"""


def run_up() -> int:
    """The command: Ctrl-C is its normal end; `ConfigError` if a node dies by itself."""
    console = Console(highlight=False, soft_wrap=True)
    mesh = start_with_progress(console, state_dir())
    try:
        console.print(usage(mesh.running), markup=False)
        console.print("\nCtrl-C ends it.\n", style="bold")
        _watch(mesh)
    except KeyboardInterrupt:
        pass
    finally:
        left_over = mesh.stop()
        console.print(f"\nStopped; {left_over} processes left over.")
    return 1 if left_over else 0


def _watch(mesh: Mesh) -> None:
    """Until a node dies. On a terminal it is looked at meanwhile; a file or a pipe stays short."""
    screen = Console(highlight=False)
    if screen.is_terminal and not screen.is_dumb_terminal:
        asyncio.run(watch(screen, lambda: mesh.running, mesh.ended))
        mesh.check_alive()
    never = threading.Event()
    while not never.wait(_CHECK_S):
        mesh.check_alive()


def curl_line(mesh: RunningMesh) -> str:
    """A shell command that asks over HTTP/2."""
    return _CURL.format(ca=mesh.ca_file, url=mesh.edges[0].url, model=mesh.model)


def openai_snippet(mesh: RunningMesh) -> str:
    """A Python program that asks with the openai package."""
    return _PYTHON.format(ca=mesh.ca_file, url=mesh.edges[0].url, model=mesh.model)


def usage(mesh: RunningMesh) -> str:
    """Lines to paste: our chat (HTTP/3), curl (HTTP/2), and the openai package."""
    return _USAGE.format(command=_command(), curl=curl_line(mesh), python=openai_snippet(mesh))


def _command() -> str:
    """How to call us: by name if the shell finds us, else by the path that we were started with."""
    return "firstlight" if shutil.which("firstlight") else sys.argv[0]
