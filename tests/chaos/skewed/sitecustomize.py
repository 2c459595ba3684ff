"""Put the clock of this process off by CHAOS_CLOCK_OFF seconds, as on a machine that nobody set.

The monotonic clock is left alone: setting a machine's clock does not move that. A folder of this file alone goes into
PYTHONPATH. libfaketime 0.9.10 cannot do it: `time.sleep` of Python 3.11 sleeps until a monotonic time, and fails under
it with EINVAL, or hangs where it moves that clock as well.
"""

from __future__ import annotations

import datetime
import os
import time
from typing import Any

OFF = float(os.environ["CHAOS_CLOCK_OFF"])

_time, _time_ns, _gmtime, _localtime = time.time, time.time_ns, time.gmtime, time.localtime
_real = datetime.datetime


class _AnyDatetime(type):
    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, _real)


class _Skewed(_real, metaclass=_AnyDatetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return _real.now(tz) + datetime.timedelta(seconds=OFF)

    @classmethod
    def utcnow(cls) -> Any:
        return _real.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=OFF)

    @classmethod
    def today(cls) -> Any:
        return cls.now()


time.time = lambda: _time() + OFF
time.time_ns = lambda: _time_ns() + int(OFF * 1e9)
time.gmtime = lambda seconds=None: _gmtime(time.time() if seconds is None else seconds)
time.localtime = lambda seconds=None: _localtime(time.time() if seconds is None else seconds)
datetime.datetime = _Skewed  # type: ignore[misc]
