"""Types of values that several models share."""

from typing import Annotated

from pydantic import Field

from dpcanary.checks import NAME_PATTERN

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, lt=1)]
SampleRate = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
