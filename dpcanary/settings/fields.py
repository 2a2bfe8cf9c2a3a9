"""Types of values that several models share."""

from typing import Annotated

from pydantic import Field

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, lt=1)]
SampleRate = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
