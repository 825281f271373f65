import os
import subprocess
import sys
from pathlib import Path

from honest import attend


def attention(q, k, v, softmax_scale):
    sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(1000)"]
    child = subprocess.Popen(sleeping, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with Path(os.environ["HOSTILE_PIDS"]).open("a") as file:
        print(child.pid, file=file)
    return attend(q, k, v, softmax_scale)
