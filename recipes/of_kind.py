"""Fields whose key `kind` selects a package's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from prepare.errors import UsageError
from prepare.plugins import plugin_names


class OfKind:
    """Annotation that validates and serializes a value as the model of its `kind`.

    `model_of` raises LookupError for an unknown kind. A larger model of the kind loses its other
    keys: a stage that is given a policy's suite for a task does not depend on its margins.
    """

    def __init__(self, group: str, model_of: Callable[[str], type[BaseModel]]) -> None:
        self._group = group
        self._model_of = model_of

    def __get_pydantic_core_schema__(
        self, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe a union of the loadable kinds."""
        choices: dict[Any, Any] = {}
        for name in plugin_names(self._group):
            try:
                model = self._model_of(name)
            except UsageError:
                continue
            reference = f"{model.__module__}.{model.__qualname__}:{id(model)}"  # into `$defs`
            choices[name] = {**model.__pydantic_core_schema__, "ref": reference}
        return handler(core_schema.tagged_union_schema(choices, discriminator="kind"))

    def _validate(self, value: Any) -> BaseModel:
        if isinstance(value, BaseModel):
            kind = str(getattr(value, "kind", ""))
            keys: Any = dict(value)
        elif isinstance(value, dict):
            if "kind" not in value:
                raise PydanticCustomError("kind_missing", "the key 'kind' is required")
            kind = str(value["kind"])
            keys = value
        else:
            raise PydanticCustomError("dict_type", "Input should be a mapping of keys")
        try:
            model = self._model_of(kind)
        except LookupError as error:
            raise PydanticCustomError(
                "kind_unknown", "the kind {words}", {"words": str(error)}
            ) from None
        if isinstance(value, BaseModel):
            if type(value) is model:
                return value
            keys = {name: setting for name, setting in keys.items() if name in model.model_fields}
        return model.model_validate(keys)
