"""`claimjobs explain`: what a queue's statements do on this database, each with a verdict."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Final

import click

from claimjobs.cli import exits
from claimjobs.cli.console import completed, data, show
from claimjobs.cli.queue_options import Target, claim_options
from claimjobs.dialects.inspection import Verdict
from claimjobs.explain.explainer import Explanation

CODES: Final[dict[Verdict, int]] = {"warning": exits.WARNINGS, "will not work": exits.WILL_NOT_WORK}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object; its keys are described above.")
@click.option("--analyze", is_flag=True, help="Claim once for real, and roll back: count row locks and rows read.")
@claim_options
@click.pass_context
def explain(context: click.Context, target: Target, as_json: bool, analyze: bool) -> None:
    """Say what a claim and a settle of this queue do on this database, and what its settings mean for them.

    The statements that this queue would send are planned by the database (EXPLAIN), and are not run. Its settings, who
    holds a snapshot, rights and poolers are checked, too. With --analyze a claim of 100 jobs is made in a
    transaction that is rolled back. Until then other consumers skip the rows that it locks. Each line is a
    finding with its verdict: ok, not known, warning, will not work. SQL that removes the cause follows, if there is
    any.

    "not known" means that the server does not show it to this user; the line says why.

    The exit code is 0 if all is well or not known, 1 for warnings, 2 if this queue will not work.

    With --json: "table"; "verdict", the worst one; "findings", each with "check", "verdict", "says" and "fix" (a list
    of SQL statements); "phases", each statement of a claim and of a settle with "name", "sql" and "plan" (text as the
    database writes it).

    \b
    Examples:
      claimjobs explain
      claimjobs explain --table emails --where "attempts = 0" --order-by priority
      claimjobs explain --analyze --json
    """
    with target.queue() as queue:
        found = queue.explain(analyze=analyze)
    data(json.dumps(found.as_dict(), default=str)) if as_json else show(*_lines(found))
    context.exit(CODES.get(found.verdict, exits.OK))


def _lines(found: Explanation) -> Iterator[str]:
    for finding in found.findings:
        yield f"{found.table}: {finding.verdict}: {finding.check}: {completed(finding.says)}"
        yield from (f"    {line}" for statement in finding.fix for line in statement.split("\n"))
    counts = Counter(finding.verdict for finding in found.findings)
    yield f"{found.table}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}"
