"""The one expression language: Python's syntax over what is known about the site.

    expression = compile_expression("host.memory_free > 4 * GiB and host.load1 < 2", schema)
    evaluator = Evaluator(world)
    evaluator.add(expression)
    for found, key in evaluator.update(world.take_changes()):
        outcome = evaluator.evaluate(found, key, now)

A text is parsed, every node of its syntax is looked up in a whitelist (`language`), its names and
types are checked against the schema, and what remains is made into closures. No text is ever run
by Python itself.
"""

from encamp.core.expressions.calls import Call, Prepared, compile_call
from encamp.core.expressions.evaluator import Evaluator
from encamp.core.expressions.expression import Expression, Outcome, compile_expression
from encamp.core.expressions.frame import Changes
from encamp.core.expressions.mistakes import ExpressionError, Mistake
from encamp.core.expressions.signature import Argument, Signature

__all__ = [
    "Argument",
    "Call",
    "Changes",
    "Evaluator",
    "Expression",
    "ExpressionError",
    "Mistake",
    "Outcome",
    "Prepared",
    "Signature",
    "compile_call",
    "compile_expression",
]
