"""What is said of data that cannot be encoded: where it is, and what is wrong there."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import pytest

from bunqueue import Bunqueue, PayloadError
from bunqueue.client.conversion.encoding import encode
from bunqueue.client.conversion.unencodable import why

CIRCLE: dict[str, Any] = {"a": [1]}
CIRCLE["a"].append(CIRCLE)
SHARED: list[int] = [1]


class Careless:
    """Whoever looks at it gets an error."""

    def __getattribute__(self, name: str) -> Any:
        raise KeyError(name)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (CIRCLE, "dict at ['a'][1] (it contains itself)"),
        (
            {"x": [SHARED, SHARED, {"y": 2**70}]},
            "int at ['x'][2]['y'] (it is beyond 64 bits; send it as text)",
        ),
        ({"x": "\udce9"}, r"str at ['x'] ('\udce9' has half a character, a lone surrogate, which no text"),
        ({"\udce9": 1}, r"str at [key '\udce9'] ('\udce9' has half a character, a lone surrogate, which no"),
        ({"x": functools.partial(print, 1)}, "partial at ['x'] (jobs carry data, and no functions"),
        ([lambda: 1], "function at [0] (jobs carry data, and no functions"),
        (print, "builtin_function_or_method (jobs carry data, and no functions"),
        ({"x": object()}, "object at ['x'] (TypeError: Encoding objects of type object is unsupported)"),
        ([Careless()], "list (TypeError: Encoding objects of type Careless is unsupported)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_why_a_value_cannot_be_encoded(value: object, said: str) -> None:
    with pytest.raises((TypeError, OverflowError, RecursionError, UnicodeEncodeError)) as caught:
        encode(value)
    assert str(why(value, caught.value)).startswith(said)


def test_arguments_of_a_job_that_contain_themselves_are_refused() -> None:
    app = Bunqueue("refused", embedded=True)

    @app.job
    def take(anything: object) -> None: ...

    with pytest.raises(PayloadError, match=r"an argument of job 'take' cannot be encoded: dict at \['any"):
        take.add(CIRCLE)


def test_embedded_mode_says_what_it_lacks_where_files_cannot_be_locked() -> None:
    program = """
import sys
sys.modules["fcntl"] = None
from bunqueue import Queue
try:
    Queue("q", embedded=True).add("n")
except ImportError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.startswith(
        "embedded mode locks its file with fcntl, which this system does not have;"
    )
