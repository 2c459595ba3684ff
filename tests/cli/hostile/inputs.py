"""The tables of inputs. A case is what is given, the exit codes that may come of it, and words of the message."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from claimjobs.cli import exits

SECRET = "geheimKern7"
"""Stands in every URL, and in no output."""
INPUT, USAGE, CONNECTION, TABLE, OK = exits.INPUT, exits.USAGE, exits.CONNECTION, exits.TABLE, exits.OK


@dataclass(frozen=True)
class Case:
    """A command line; `{url}` stands for the database's."""

    words: tuple[str, ...]
    codes: tuple[int, ...]
    said: str = ""
    stdin: bytes = b""
    map: str = ""
    """The text of a file that is given as `--map`."""

    def __str__(self) -> str:
        return (
            " ".join((*self.words, self.map.replace("\n", " "), repr(self.stdin[:40]) if self.stdin else ""))[:90]
            .encode("ascii", "replace")
            .decode()
        )


def case(line: str, *codes: int, said: str = "", stdin: bytes = b"", value: str | None = None) -> Case:
    """A case from a line; `@` in it stands for the value."""
    return Case(
        tuple(value if word == "@" and value is not None else word for word in line.split()), codes, said, stdin
    )


# --- predicates -----------------------------------------------------------------------------------------------------

NOT_ONE = [
    "1=1) or (1=1",
    "1=1)",
    "(1=1",
    "1=1; delete from jobs",
    "1=1;",
    "1=1 /*",
    "d = 'a",
    'd = "a',
    "",
    "   ",
    "/* nothing */",
    "-- nothing",
    "d = 'a' or (",
    "d = ')' or (d = '('  ))",
    "1=1)) or ((1=1",
    "exists (select 1 from jobs))",
]
NOT_UNDERSTOOD = [
    "colour = 'red'",
    "nonsense",
    "d =",
    "d = = 'a'",
    "and",
    "where 1=1",
    "d in ()",
    "d between 1",
    "no_such_function(d)",
    "(select 1 from nowhere) = 1",
    "(select id, d from jobs) = 1",
    "row_number() over () = 1",
    "rank() over (order by id) = 1",
    "count(*) > 1",
    "1=1 order by id",
    "1=1 limit 1",
    "1=1 for update",
    "1=1 union select 1",
    "case when 1=1 then",
    "d like",
    "jobs.colour = 1",
    "elsewhere.d = 'a'",
    "drop table jobs",
    "$$",
    "%s",
    "%(d)s",
    ":d",
    "?",
    "\\",
    "d = 'a' collate nonsense",
    "☃ = 1",
]
WHERE_COMMANDS = [
    "list --state dead --where @",
    "dead retry --where @",
    "dead drop --yes --where @",
    "purge --older-than 0s --where @",
]

PREDICATES = [
    *(
        case(line, INPUT, said="not one whole expression", value=text)
        for line, text in product(WHERE_COMMANDS, NOT_ONE)
    ),
    *(case("dead drop --yes --where @", INPUT, value=text) for text in NOT_UNDERSTOOD),
    *(case(line, INPUT, value=text) for line, text in product(WHERE_COMMANDS, NOT_UNDERSTOOD[:2])),
    case("purge --older-than 0s --dry-run --where @", INPUT, value=NOT_UNDERSTOOD[0]),
    # What is no boolean, or cannot be computed, is refused by some databases, and false to the others.
    *(
        case("list --state dead --where @", INPUT, OK, value=text)
        for text in (
            "id/0 = 1",
            "id/0",
            "1",
            "'a'",
            "null",
            "d",
            "select 1",
            "id + 99999999999999999999 > 0",
            "sqrt(-1) > 0",
        )
    ),
]

# --- numbers and spans ----------------------------------------------------------------------------------------------

NO_NUMBERS = ["nan", "inf", "-inf", "1e308", "99999999999", "-1", "0x10", "", " ", "1,000", "one", "1e", "--", "12x"]
NUMERIC = [
    "list --state dead --limit @",
    "reclaim --owner @ --force",
    "reclaim --retry-attempts @",
    "start-processing --consumers @",
    "start-processing --generators @",
    "start-processing --batch-size @",
    "start-processing --concurrency @",
    "start-processing --jobs @",
    "start-processing --retry-attempts @",
]
DECIMAL = [
    "start-processing --rate @",
    "start-processing --duration @",
    "start-processing --idle @",
    "start-processing --lease @",
    "start-processing --max-batch-time @",
]
NUMBERS = [
    *(case(line, USAGE, value=text) for line, text in product([*NUMERIC, *DECIMAL], NO_NUMBERS)),
    *(case(line, USAGE, value=text) for line, text in product(NUMERIC, ("1.5", "99999999999999999999999999"))),
    *(
        case("purge --older-than @", USAGE, said="--older-than", value=text)
        for text in ("", "7", "d", "-7d", "nan", "1e308d", "7 d", "7y", "99999999999999999d", "7d7h", "12x")
    ),
]

# --- names, ids and other options -----------------------------------------------------------------------------------

BAD_TABLES = ["", " ", ".", "a.", ".a", "a..b"]
NO_TABLES = [
    "nowhere",
    "jobs; drop table jobs",
    "'",
    '"',
    "`",
    "a" * 300,
    "☃",
    "JOBS x",
    "no.where",
    "-- x",
    "%s",
    "a b",
]
READING = [
    "status --table @",
    "list --state dead --table @",
    "reclaim --table @",
    "purge --older-than 0s --table @",
    "dead drop --all --yes --table @",
]
BAD_IDS = ["abc", "1.5", "nan", "99999999999999999999999999", "-99999999999999999999", "1;", "1,2", "0x1", "é"]

BAD_MAPS = [
    *(("is no TOML", text) for text in ("=", "x", "[columns", "table = x", "\0", "table = 'a'\ntable = 'b'")),
    *(("is not known there", text) for text in ("x = 1", "[columns]\nx = 'd'", "[states]\nready = 0", "'' = 1")),
    *(("is a section", text) for text in ("columns = 'x'", "states = 3", "[[columns]]")),
    *(("give the name of", text) for text in ("[columns]\nstatus = 3", "[columns]\nkey = []", "[columns]\nkey = ['']")),
    *(("give the name of", text) for text in ("table = 3", "table = ''", "[table]")),
    *(("give a number, true", text) for text in ("[states]\ndone = [1]", "[states.done]")),
    *(("give one of", text) for text in ("hold = 'hands'", "claims = 3", "on_done = []")),
    ("give True, False", "side_car = 1"),
    ("plays two roles", "[columns]\nstatus = 'd'\nowner_id = 'd'"),
    ("name that column", "[columns]\nstatus = ''\n[states]\ndone = 7"),
]

OPTIONS = [
    *(case(line, USAGE, said="no name of a table", value=text) for line, text in product(READING, BAD_TABLES)),
    *(case(line, TABLE, said="is not in this database", value=text) for line, text in product(READING, NO_TABLES)),
    *(
        case(line, USAGE, said="is no key of jobs (id)", value=text)
        for line, text in product(("show -- @", "cancel -- @", "dead retry -- @", "dead drop --yes -- @"), BAD_IDS)
    ),
    *(
        case(line, INPUT, said=said, value=text)
        for line, said in (("show -- @", "no row of jobs"), ("cancel -- @", "was not cancelled"))
        for text in ("0", "-1", "999999", "2147483647")
    ),
    *(
        case("enqueue - --unique @", USAGE, said="give the names of columns", value=text)
        for text in ("", ",", "d,", " ", ",,d")
    ),
    case("enqueue - --unique nowhere", TABLE, said="'nowhere'", stdin=b'{"d": "a", "e": "b"}\n'),
    case("enqueue - --unique status", USAGE, said="cannot be unique", stdin=b'{"d": "a", "e": "b"}\n'),
    *(Case(("status",), (INPUT,), said, map=text) for said, text in BAD_MAPS),
    *(
        Case(("status",), (TABLE,), "check the map", map=f"[columns]\n{text}")
        for text in ("status = 'x'", "owner_id = 'x'", "key = 'x'", "key = ['id', 'x']")
    ),
    case("status --column status=x", USAGE, said="[columns] of a --map file"),
    case("status --state claimed=1", USAGE, said="[states] of a --map file"),
    case("status --hold never", USAGE, said="--hold"),
    case("status --map /nowhere.toml", INPUT, said="/nowhere.toml cannot be read"),
    case("status --map /", INPUT, said="cannot be read"),
    case("status --table nowhere:Nothing", INPUT, said="cannot be used"),
    case("status --table shop/models.py:emails", INPUT, said="is a path: name the module, as in shop.models:emails"),
    case("start-processing ./shop/mail.py:deliver", INPUT, said="is a path: name the module, as in shop.mail:deliver"),
    case("status --table :", USAGE, INPUT, TABLE),
    case("status --table claimjobs:Nothing", INPUT, said="cannot be used"),
    case("dead drop", USAGE, said="say which dead jobs: give either"),
    case("dead drop --all", USAGE, said="give --yes as well"),
    case("dead drop --all 1 --yes", USAGE, said="say which dead jobs: give either"),
    case("show", USAGE, said="Missing argument"),
    case("cancel", USAGE, said="Missing argument"),
    case("list --state gone", USAGE, said="--state"),
    case("reclaim --force", USAGE, said="--force goes with"),
    case("reclaim --owner 7", USAGE, said="another program's"),
    case("reclaim --ownerless --owner 7 --force", USAGE, said="leave out --owner"),
    case("reclaim --owner 0", USAGE),
    case("purge", USAGE, said="--older-than"),
    case("purge --older-than 0s --state claimed", USAGE, said="--state"),
    case("setup-tables --add nonsense", USAGE, said="cannot be added"),
    case("setup-tables --recreate", USAGE, said="give --yes as well"),
    case("enqueue /nowhere.jsonl", USAGE, said="No such file"),
    case("enqueue /", USAGE),
    case("enqueue - --format xml", USAGE),
    case("nonsense", USAGE, said="No such command"),
    case("status extra", USAGE, said="unexpected extra argument"),
    case(f"status mysql://app:{SECRET}@db/shop", USAGE, said="***"),
    case(f"mysql://app:{SECRET}@db/shop", USAGE, said="***"),
    case(f"status --ur=mysql://app:{SECRET}@db/shop", USAGE, CONNECTION),
    case(f"enqueue mysql://app:{SECRET}@db/shop", USAGE, said="***"),
]

LONG_NAMES = [
    *(
        case(f"setup-tables --table {name}", TABLE, said="choose another name for it")
        for name in ("a" * 70, "a" * 200, "☃" * 70)
    ),
]

# --- rows -----------------------------------------------------------------------------------------------------------

BAD_JSON = [
    "nonsense",
    "{",
    "[]",
    "[1, 2]",
    "null",
    "17",
    '"text"',
    '{"d": "a", "e": "b"',
    '{"d": "a", "e": "b"} x',
    '{"d": "a", "e": "b", "d": "c"}',
    '{"d": {"a": 1, "a": 2}, "e": "b"}',
    '{"d": "a", "e": NaN}',
    '{"d": "a", "e": Infinity}',
    '{"d": "a"}',
    "{}",
    '{"d": null, "e": "b"}',
    '{"d": 1, "e": "b"}',
    '{"d": ["a"], "e": "b"}',
    '{"d": "a", "e": "b", "colour": 1}',
    '{"d": "a", "e": "b", "priority": "high"}',
    '{"d": "a", "e": "b", "priority": 1.5}',
    '{"d": "a", "e": "b", "priority": true}',
    '{"d": "a", "e": "b", "priority": 99999999999}',
    '{"d": "a", "e": "b", "priority": -99999999999999999999999}',
    '{"d": "a", "e": "b", "priority": 1e308}',
    '{"d": "a", "e": "b", "run_at": "tomorrow"}',
    '{"d": "a", "e": "b", "run_at": "2026-01-31T12:00:00"}',
    '{"d": "a", "e": "b", "run_at": 17}',
    '{"d": "a", "e": "b", "run_at": "2026-13-31T12:00:00Z"}',
    '{"d": "a", "e": "b", "id": "x"}',
    '{"d": "a", "e": "b", "id": 99999999999999999999}',
    '{"d": "a\\ud800", "e": "b"}',
    '{"d": "a", "e": "b", "status": "claimed"}',
    '{"d": "a", "e": "b", "status": "done"}',
    '{"d": "a", "e": "b", "status": "dead"}',
    '{"d": "a", "e": "b", "status": "nonsense"}',
    '{"d": "a", "e": "b", "status": 1}',
    '{"d": "a", "e": "b", "owner_id": 7}',
    '{"d": "a", "e": "b", "owner_id": -1}',
    '{"d": "a", "e": "b", "owner_date": "2026-01-31T12:00:00Z"}',
    '{"d": "a", "e": "b", "attempts": -5}',
    '{"d": "a", "e": "b", "attempts": 5}',
    '{"d": "a", "e": "b", "suspect": 1}',
    '{"d": "' + "a" * 5_000 + '", "e": "b", "last_error": 7}',
    "[" * 5_000,
    '{"d": ' + "[" * 100_000,
    "\x00",
    "\ufeff\ufeff{}",
]
HEADER = b"d,e,priority\n"
BAD_CSV = [
    b"",
    b"colour\nred\n",
    b"d,d\na,b\n",
    b"d,\na,b\n",
    b"d,e\na\n",
    b"d,e\na,b,c\n",
    b'd,e\n"a,b\n',
    b'd,e\na,"b" c\n',
    HEADER + b"a,b,high\n",
    HEADER + b"a,b,99999999999\n",
    HEADER + b"a,b,1.5\n",
    HEADER + b"a,b,nan\n",
    b"d,e,status\na,b,claimed\n",
    b"d,e,owner_id\na,b,7\n",
    b"d,e,attempts\na,b,-1\n",
    b"d,e,run_at\na,b,yesterday\n",
    b"d\na\n",
    b"d,e\n\xff,b\n",
    b"\xff\xfe\n",
    b"d,e\na,b\x00c,d\n",
]
ROWS = [
    *(
        case("enqueue -", INPUT, said="line 2: ", stdin=b"\n" + text.encode("utf-8", "surrogatepass") + b"\n")
        for text in BAD_JSON
    ),
    case("enqueue -", INPUT, said="is not UTF-8", stdin=b"\n" + b"\xff\xfe\n"),
    *(case("enqueue - --format csv", INPUT, said="line ", stdin=text) for text in BAD_CSV),
]

# --- URLs -----------------------------------------------------------------------------------------------------------

BAD_URLS = [
    "mysql",
    "mysql:",
    "://",
    "http://{}@example.org",
    "nonsense://app:{}@db/shop",
    "sqlite://",
    "oracle://app:{}@db/shop",
    "mysql+nonsense://app:{}@db/shop",
    "mysql+mysqldb://app:{}@127.0.0.1:1/shop",
    "mysql+aiomysql://app:{}@127.0.0.1:1/shop",
    "mysql://app:{}@127.0.0.1:port/shop",
    "mysql://app:{}@127.0.0.1:99999999/shop",
    "mysql://app:{}@127.0.0.1:1/shop",
    "mysql://app:{}@[::1:1/shop",
    "mysql://127.0.0.1:1/shop?password={}",
    "mysql://127.0.0.1:1/shop?passwd={}",
    "mysql://127.0.0.1:1/shop?charset=nonsense&password={}",
    "mysql://127.0.0.1:1/shop?nonsense=1&password={}",
    "mysql://127.0.0.1:1/shop?connect_timeout=nonsense&password={}",
    "mysql://127.0.0.1:1/shop?read_default_file=/nowhere&password={}",
    "mysql://127.0.0.1:1/shop?ssl_ca=/nowhere&password={}",
    "mysql://127.0.0.1:1/shop?ssl_key_password={}",
    "mysql://127.0.0.1:1/shop?plugin={}",
    "postgresql://app:{}@127.0.0.1:1/shop",
    "postgresql://127.0.0.1:1/shop?password={}",
    "postgresql://127.0.0.1:1/shop?sslpassword={}&sslmode=require",
    "postgresql://127.0.0.1:1/shop?sslkey={}&sslcert=/nowhere&sslmode=require",
    "postgresql://127.0.0.1:1/shop?nonsense={}",
    "postgresql://127.0.0.1:1/shop?sslmode={}",
    "postgresql://127.0.0.1:1/shop?connect_timeout=never&password={}",
    "postgresql+asyncpg://app:{}@127.0.0.1:1/shop",
    "postgresql+psycopg2://app:{}@127.0.0.1:1/shop",
    "postgresql+pg8000://app:{}@127.0.0.1:1/shop",
    "postgres://app:{}@127.0.0.1:1",
    "mysql://app:{}x@y@127.0.0.1:1/shop",
    "mysql://app:{}%4@127.0.0.1:1/shop",
    "mysql://app:{}@/",
    "mariadb://app:{}@127.0.0.1:1/shop",
    "app:{}@127.0.0.1/shop",
    " mysql://app:{}@127.0.0.1:1/shop",
    "mysql://ap p:{}@127.0.0.1:1/shop",
    "☃://app:{}@127.0.0.1:1/shop",
]
TAKING_TEXT = [
    *("list --where @", "purge --older-than 1d --where @", "dead retry --where @", "explain --where @"),
    *("explain --order-by @", "pause --reason @", "cancel 1 --reason @", "show @", "start-processing @"),
]
NOT_UTF8 = [
    *(case(line, USAGE, said="it is not UTF-8", value="M\udcffller") for line in TAKING_TEXT),
    Case(("status", "--url", f"mysql://app:{SECRET}\udcff@127.0.0.1:1/shop"), (USAGE,), "it is not UTF-8"),
]
URLS = [
    Case((*verbose, command, "--url", url.replace("{}", SECRET)), (CONNECTION,))
    for url in BAD_URLS
    for verbose in ((), ("-v",))
    for command in ("status",)
]
