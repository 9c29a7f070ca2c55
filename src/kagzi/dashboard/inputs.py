"""The input of a run as fields of a form, where the workflow's worker has said what it takes; as JSON where not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from kagzi.core.limits import PAYLOAD_BYTES
from kagzi.core.versions import WorkflowInterface
from kagzi.dashboard.asking import Field, Option
from kagzi.dashboard.text import EDITABLE_BYTES, editable_text
from kagzi.errors import InvalidRequest, NotFound, VersionMismatch
from kagzi.http.apart import apart
from kagzi.http.call import Call
from kagzi.ports.parameters import Kind, Parameter, Parameters, Unfit, read_json, read_parameters, spoken

ARGUMENT: Final = "arg"  # fields of arguments are named `arg.NAME`
JSON_HINT: Final = "JSON: an array is arguments by position, an object by name"
_INPUT_TYPES: Final = {Kind.INTEGER: "number", Kind.NUMBER: "number"}
Written = Annotated[str, Meta(max_length=PAYLOAD_BYTES)]


class InputForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a form that is the input: as JSON, or `arg` by parameter if it is made of `fields`. Fields that are
    left empty are absent."""

    input: Written | None = None
    arg: dict[str, Written] = {}
    others: Written | None = None
    fields: bool = False


class WrongInput(InvalidRequest):
    """Raised if what was written into some fields does not fit; `wrong` says what, by the name of each field."""

    def __init__(self, wrong: Mapping[str, str]) -> None:
        super().__init__("; ".join(wrong.values()))
        self.wrong = wrong


async def interface_of(call: Call[Any, Any], workflow: str, version: str | None) -> WorkflowInterface | None:
    """Returns what the workflow takes, if any worker has said so."""
    try:
        return await call.engine.versions.describe(call.namespace, workflow, version)
    except (NotFound, VersionMismatch):  # nobody has offered it, or a server that is older than this page
        return None


async def parameters_of(call: Call[Any, Any], workflow: str, version: str | None) -> Parameters | None:
    interface = await interface_of(call, workflow, version)
    return None if interface is None else read_parameters(interface.input_schema)


async def values_of(parameters: Parameters, data: bytes) -> dict[str, str] | None:
    """Returns what the fields show of an input; None if they cannot hold it."""
    return None if len(data) > EDITABLE_BYTES else await apart(len(data), _values_of, parameters, data)


def _values_of(parameters: Parameters, data: bytes) -> dict[str, str] | None:
    if (spread := parameters.spread(data)) is None:
        return None
    values: dict[str, str] = {}
    for each in parameters.items:
        if (given := spread.pop(each.name, None)) is not None:
            if (shown := each.write(given)) is None:
                return None
            values[f"{ARGUMENT}.{each.name}"] = shown
    if spread:
        values["others"] = editable_text(parameters.assemble(spread)) or ""
    return values


def fields_of(
    parameters: Parameters, values: Mapping[str, str], wrong: Mapping[str, str] | None = None
) -> tuple[Field, ...]:
    wrong = wrong or {}
    fields = [_field(each, values.get(f"{ARGUMENT}.{each.name}", ""), wrong) for each in parameters.items]
    if parameters.others:
        fields.append(
            Field(
                name="others",
                label="Other arguments",
                value=values.get("others", ""),
                hint="JSON object by name",
                error=wrong.get("others", ""),
                long=True,
                rows=3,
            )
        )
    return (Field(name="fields", label="", value="true", hidden=True), *fields)


def _field(parameter: Parameter, value: str, wrong: Mapping[str, str]) -> Field:
    name = f"{ARGUMENT}.{parameter.name}"
    told = "" if parameter.default is None else f"default: {spoken(parameter.default)}"
    optional = told or "may be left out"
    words = [parameter.words] if parameter.kind is not Kind.CHOICE else []
    options: tuple[Option, ...] = ()
    if parameter.kind is Kind.CHOICE:
        options = tuple([Option(each, spoken(each)) for each in parameter.choices])
        if not parameter.required or not value:
            options = (Option("", optional if not parameter.required else "choose …"), *options)
    elif not parameter.required:
        words.append(optional)
    hint = "; ".join(words)
    bounds = parameter.bounds if parameter.kind in _INPUT_TYPES else {}
    return Field(
        name=name,
        label=parameter.name,
        value=value,
        hint=f"{parameter.about}{' · ' if parameter.about and hint else ''}{hint}",
        error=wrong.get(name, ""),
        kind="date" if parameter.format == "date" else _INPUT_TYPES.get(parameter.kind, "text"),
        step="1" if parameter.kind is Kind.INTEGER else "any",
        least=str(bounds.get("minimum", "")),
        most=str(bounds.get("maximum", "")),
        long=parameter.kind is Kind.JSON or "\n" in value,
        rows=4,
        required=parameter.required and not parameter.nullable,
        options=options,
    )


async def read_input(parameters: Parameters | None, form: Any) -> bytes | None:
    """Reads the input that a form says, an `InputForm` or one with the same fields; None: it says nothing. Raises
    WrongInput by field."""
    size = sum(map(len, [form.input or "", form.others or "", *form.arg.values()]))
    return await apart(size, _read_input, parameters, form)


def _read_input(parameters: Parameters | None, form: Any) -> bytes | None:
    if not form.fields:
        if form.input is None:
            return None
        try:
            return read_json(form.input, "input").encode()
        except Unfit as error:
            raise WrongInput({"input": str(error)}) from None
    if parameters is None:
        raise WrongInput({"": "nobody says any more what this workflow takes; write its input as JSON"})
    given: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for each in parameters.items:
        name = f"{ARGUMENT}.{each.name}"
        written = form.arg.get(each.name)
        try:
            if written is not None:
                given[each.name] = each.read(written)
            elif each.required and each.nullable:
                given[each.name] = "null"
            elif each.required:
                wrong[name] = f"{each.name} is missing: {each.words}"
        except Unfit as error:
            wrong[name] = str(error)
    for stranger in form.arg.keys() - {each.name for each in parameters.items}:
        wrong[""] = f"this workflow does not take {stranger[:100]} any more; open the form again"
    if form.others is not None and parameters.others:
        try:
            others = Parameters(items=(), others=True).spread(read_json(form.others, "others").encode())
        except Unfit as error:
            wrong["others"] = str(error)
        else:
            if others is None or others.keys() & given.keys() or not form.others.lstrip().startswith("{"):
                wrong["others"] = "others must be a JSON object by name, without the arguments above"
            else:
                given |= others
    if wrong:
        raise WrongInput(wrong)
    return parameters.assemble(given)


def written_values(form: Any) -> dict[str, str]:
    """Returns what stands in a form that was sent, by the name of each field."""
    values = {f"{ARGUMENT}.{name}": value for name, value in form.arg.items()}
    return values | {name: value for name in ("input", "others") if (value := getattr(form, name)) is not None}
