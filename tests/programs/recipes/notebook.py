"""A notebook in a Jupyter kernel, by Jupyter's own client: cells that read pictures, an interrupt
in the middle of a cell, a restart, and the same cell again.

    notebook.py KERNEL DIR
"""
import asyncio, signal, sys, threading, time

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

READ = """import os
from PIL import Image
total = 0
for epoch in range(3):
    for top, _, names in sorted(os.walk(ROOT + "/pictures")):
        for name in sorted(names):
            with Image.open(os.path.join(top, name)) as picture:
                total += sum(picture.convert("L").tobytes())
print("pixels", total)"""


def run(client, code):
    """The cell's standard output, or the name of the error that ended it."""
    cell = nbformat.v4.new_code_cell(code)
    client.nb.cells.append(cell)
    try:
        client.execute_cell(cell, len(client.nb.cells) - 1)
    except CellExecutionError as e:
        return e.ename
    return "".join(o.get("text", "") for o in cell.outputs).strip()


def main(kernel, root):
    client = NotebookClient(nbformat.v4.new_notebook(), kernel_name=kernel, timeout=120)
    with client.setup_kernel():
        print("first:", run(client, f"ROOT = {root!r}\n{READ}"), flush=True)
        threading.Timer(3, lambda: asyncio.run(client.km.signal_kernel(signal.SIGINT))).start()
        started = time.monotonic()
        print("interrupted:", run(client, "import time; time.sleep(60)"), flush=True)
        assert time.monotonic() - started < 30, "the interrupt did not reach the cell"
        print("after the interrupt:", run(client, "print(total)"), flush=True)
    with client.setup_kernel():
        print("restarted:", run(client, f"ROOT = {root!r}\n{READ}"), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
