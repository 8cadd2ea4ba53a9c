"""What the meta-prover says to end a thought and to begin the answer (Figure 22)."""

from pydantic import BaseModel, ConfigDict, Field


class Template(BaseModel):
    """What the meta-prover writes after a prefix; the default is Figure 22's."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    stop: str = Field(
        "Time is up.\n\nGiven the time I've spent and the approaches I've tried, I should stop thinking and formulate"
        " a final answer based on what I already have.\n",
        description="Stop phrase that ends an unfinished thought.",
    )
    close: str = Field("</think>\n\n", description="Closes the thought.")
    header: str = Field("**Step-by-Step Explanation and Answer:**\n\n1. **", description="Opening of the answer.")

    def force(self, prefix: str, *, stop: bool = True) -> str:
        """A prefix of an unfinished thought, ended by the stop phrase (unless `stop` is off), and the answer begun."""
        body = prefix.rstrip("\n")
        phrase = self.stop if stop else ""
        break_ = ("\n\n" if stop else "\n") if body else prefix
        return body + break_ + phrase + self.close + self.header

    def finish(self, thought: str) -> str:
        """The whole of a thought that the model closed itself, closed."""
        return thought + self.close
