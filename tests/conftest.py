"""What holds for every test of this folder."""

import signal

# A shell starts background jobs with SIGINT ignored, and children inherit that: tests of Ctrl-C need the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
