"""A plug-in with a method that fails."""

from dataclasses import dataclass

from privet.errors import PrivetError
from privet.methods import Context, Method, Outcome, Task, register


@register
@dataclass(frozen=True, kw_only=True)
class Broken(Method):
    """Fails on purpose."""

    key: str = "broken"
    title: str = "A broken method"
    needs: str = ""

    def why_not(self, task: Task) -> str:
        return self.needs

    def fit(self, task: Task, context: Context) -> Outcome:
        raise PrivetError("This method is broken on purpose.")
