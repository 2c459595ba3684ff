"""Types of keys."""

from __future__ import annotations

from claimjobs.errors import KeyUnfit
from tests.foreign.cases import MYSQL, POSTGRES, WAYS, Case, key

ANYWHERE: list[Case] = [
    key("INTEGER", "-1", "0", "1", "2147483647"),
    key("BIGINT", "-9223372036854775808", "0", "9223372036854775807"),
    key("NUMERIC(20,5)", "0.1", "0.10001", "123456789012345.67890", "-1"),
    key("VARCHAR(40)", "'a'", "'Z '", "'b%'", "'b''c'", r"'%(x)s'", "'ö'", "''"),
    key("CHAR(9)", "'a'", "'b'", "'c c'", "''"),
    key("DATE", "'2020-02-29'", "'1000-01-01'", "'9999-12-31'"),
]
ON_MYSQL: list[Case] = [
    key(type_, *values, on=MYSQL, ways=("lease", WAYS[1 + place % 3]))
    for place, (type_, values) in enumerate(
        {
            "TINYINT": ("-128", "127", "0", "1"),
            "TINYINT(1)": ("0", "1", "2", "-1"),
            "BIGINT UNSIGNED": ("0", "18446744073709551615", "9223372036854775808"),
            "DECIMAL(30,10)": ("0.1", "12345678901234567890.0123456789", "-1"),
            "YEAR": ("1999", "2024"),
            "DATETIME": ("'2020-01-01 00:00:00'", "'9999-12-31 23:59:59'"),
            "DATETIME(3)": ("'2020-01-01 00:00:00.123'", "'2020-01-01 00:00:00'"),
            "DATETIME(6)": ("'2020-01-01 00:00:00.000001'", "'2020-01-01 00:00:00'"),
            "TIMESTAMP(6) NOT NULL DEFAULT '2000-01-01'": ("'2020-01-01 00:00:00.000001'", "'2020-01-01 00:00:00'"),
            "BINARY(3)": ("x'000102'", "x'ff'", "x'616263'"),
            "VARBINARY(20)": ("x'00'", "x'ff'", "'abc'", "''"),
            "BINARY(16)": ("x'00112233445566778899aabbccddeeff'", "x'00'"),
            "VARCHAR(20) COLLATE utf8mb4_bin": ("'a'", "'A'", "'ä'"),
            "VARCHAR(20) COLLATE utf8mb4_general_ci": ("'a'", "'B'", "'c '"),
            "VARCHAR(20) CHARACTER SET latin1": ("'a'", "'z'", "'B'"),
            "CHAR(20) CHARACTER SET ascii COLLATE ascii_bin": ("'a'", "'A'", "'b c'"),
            "VARCHAR(20) CHARACTER SET utf16": ("'a'", "'ö'"),
        }.items()
    )
]
ON_POSTGRES: list[Case] = [
    key(type_, *values, on=POSTGRES, ways=("lease", WAYS[1 + place % 3]))
    for place, (type_, values) in enumerate(
        {
            "NUMERIC": ("0.1", "1e40", "-1"),
            "TEXT": ("'a'", "'A '", "''", "'{\"a\"}'"),
            '"char"': ("'a'", "'b'"),
            "TIME": ("'00:00:00'", "'23:59:59'"),
            "NAME": ("'a'", "'B'"),
            "BYTEA": (r"'\x00'", r"'\xff'", "'abc'", "''"),
            "UUID": ("'00112233-4455-6677-8899-aabbccddeeff'", "'00000000-0000-0000-0000-000000000000'"),
            "BOOLEAN": ("true", "false"),
            "TIMESTAMP": ("'2020-01-01'", "'2020-01-01 00:00:00.000001'"),
            "TIMESTAMP(3)": ("'2020-01-01'", "'2020-01-01 00:00:00.123'"),
            "TIMESTAMPTZ": ("'2020-01-01+00'", "'2020-01-01 00:00:00.000001+05'"),
            "TIMETZ": ("'12:00:00+05'", "'12:00:00-05'"),
            "OID": ("1", "2", "4294967295"),
            "INET": ("'10.0.0.1'", "'10.0.0.0/8'", "'::1'"),
            "CIDR": ("'10.0.0.0/8'", "'::/0'"),
            "MACADDR": ("'08:00:2b:01:02:03'", "'08:00:2b:01:02:04'"),
            "BIT(3)": ("B'101'", "B'000'"),
            "VARBIT": ("B'101'", "B''"),
            "INT4RANGE": ("'[1,5)'", "'empty'", "'[7,9)'"),
            'TEXT COLLATE "C"': ("'a'", "'B'"),
        }.items()
    )
]
REFUSED_ON_MYSQL: list[Case] = [
    key(type_, *values, on=MYSQL, ways=("lease", "side-car"), refused=KeyUnfit)
    for type_, values in {
        "FLOAT": ("1.1", "2.2", "1e10", "0"),
        "DOUBLE": ("1.1", "0.1", "1e300", "2.2250738585072014e-308", "0.30000000000000004"),
        "TIME(6)": ("'00:00:00.000001'", "'23:59:59.999999'"),
        "TIME /* beyond a day */": ("'25:00:00'", "'838:59:59'", "'-01:00:00'", "'-00:00:01'"),
        "SET('a','b','c')": ("'a'", "'a,b'", "'b,c'", "''"),
        "BIT(1)": ("0", "1"),
        "BIT(20)": ("1", "255", "65535"),
    }.items()
]
REFUSED_ON_POSTGRES: list[Case] = [
    key(type_, *values, on=POSTGRES, ways=("lease", "side-car"), refused=KeyUnfit)
    for type_, values in {
        "REAL": ("1.1", "0.1", "1e30", "'NaN'", "'Infinity'"),
        "DOUBLE PRECISION": ("1.1", "0.1", "1e300", "0.30000000000000004", "'NaN'", "'-Infinity'"),
        "MONEY": ("'1.10'", "'-3'", "'1234567.89'"),
        "BPCHAR": ("'a'", "'b '", "'c'"),
        "INTERVAL": ("'1 hour'", "'12 months'", "'1 day'", "'-1 day +1 hour'"),
        "JSONB": ("'{\"a\": 1}'", "'1'", "'[]'", "'\"x\"'"),
        "INTEGER[]": ("'{1,2}'", "'{}'", "'{3}'"),
        "TEXT[]": ("'{a,b}'", "'{}'", "'{\"c,d\"}'"),
        "XID8": ("'1'", "'2'", "'12345678901'"),
        "TSVECTOR": ("'a b'", "'c'"),
        "PG_LSN": ("'0/1'", "'16/B374D848'"),
        "TID": ("'(0,1)'", "'(0,2)'"),
    }.items()
]
ON_MYSQL_ALONE: list[Case] = [
    key(type_, *values, on=("mysql",))
    for type_, values in {
        "ENUM('a','b','c d')": ("'a'", "'b'", "'c d'"),
    }.items()
]
REFUSED_ON_MARIADB: list[Case] = [
    key(type_, *values, on=("mariadb",), ways=("lease", "side-car"), refused=KeyUnfit)
    for type_, values in {
        "ENUM('a','b','c d')": ("'a'", "'b'", "'c d'"),
    }.items()
]
UNREADABLE: list[Case] = [
    key(type_, "'2020-01-01'", value, what=f"{type_} {value}", on=POSTGRES, unclaimed=1)
    for type_, value in (
        ("DATE", "'infinity'"),
        ("DATE", "'0044-03-15 BC'"),
        ("TIMESTAMP", "'-infinity'"),
        ("TIMESTAMPTZ", "'infinity'"),
    )
]
"""Rows with such a key are never claimed, which is told; the others are."""
ALL: list[Case] = [
    *(*ANYWHERE, *ON_MYSQL, *ON_POSTGRES, *ON_MYSQL_ALONE),
    *(*REFUSED_ON_MYSQL, *REFUSED_ON_POSTGRES, *REFUSED_ON_MARIADB, *UNREADABLE),
]
