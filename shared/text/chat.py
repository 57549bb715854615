"""Messages to a prompt, by the template that comes with a model.

A template is a program from outside: it runs in Jinja's sandbox, and what it may repeat, build and
write is bounded. What users write is data: a control token spelled in a message stays text.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, cast

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.exceptions import TemplateError
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError, RequestError
from firstlight.shared.model_files import read_gguf, read_json
from firstlight.shared.text.tokenizer import Tokenizer, token_text

_TEMPLATE_CHARACTERS_MAX = 256 << 10
_OUTPUT_CHARACTERS_MAX = 8 << 20
_OPERATIONS_MAX = 200_000
"""Loop rounds, calls and operators of one rendering."""
_CHARACTERS_MAX = 64 << 20
"""Characters that one rendering may build, intermediate ones included."""
_RENDER_MAX_S = 2.0
_NUMBER_BITS_MAX = 64
_GROWING_METHODS = frozenset(
    {"center", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill"}
)
"""Text methods that can build a text of any length from a number."""
_FILTERS = frozenset(
    [
        "abs",
        "capitalize",
        "count",
        "d",
        "default",
        "first",
        "float",
        "int",
        "items",
        "last",
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "reverse",
        "round",
        "safe",
        "select",
        "selectattr",
        "sort",
        "title",
        "trim",
        "unique",
        "upper",
    ]
)
_COUNTED, _JOINED = "_firstlight_counted", "_firstlight_joined"
_MARKS = range(0xE000, 0xF8FF)
"""Private use characters, of which one that occurs nowhere marks where a control token was cut."""


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled template; `bos` and `eos` are the texts of those tokens, which it may write."""

    source: str
    bos: str
    eos: str
    _template: Template = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse a source that does not compile."""
        if len(self.source) > _TEMPLATE_CHARACTERS_MAX:
            raise ConfigError(f"chat template of {len(self.source)} characters")
        try:
            with _budget():
                compiled = _Environment().from_string(self.source)
            # The class is frozen; this follows from its source, and is made once for all.
            object.__setattr__(self, "_template", compiled)
        except (TemplateSyntaxError, RecursionError) as error:
            raise ConfigError(f"chat template: {error}") from error
        except TemplateError as error:
            raise ConfigError(f"chat template: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt as text.

        Raises:
            RequestError: the template refuses these messages, fails on them, or does not end.

        """
        chunks = self._template.generate(
            messages=messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            bos_token=self.bos,
            eos_token=self.eos,
        )
        try:
            with _budget():
                return "".join(_bounded(chunks))
        except RequestError:
            raise
        except (TemplateError, RecursionError, MemoryError) as error:
            raise RequestError(f"chat template: {error}", param="messages") from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise RequestError(
                f"chat template cannot use these messages: {error}", param="messages"
            ) from error


class ChatEncoder:
    """Messages to prompt ids, in which only the template's own control tokens are control tokens.

    Every control token spelled in a message, and every beginning of one at the end of a text
    (which the next text could complete), is cut by a mark; once rendered, what still reads as a
    control token is the template's, and the marks are taken out of the rest.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template, self._tokenizer = template, tokenizer
        self._spelled = sorted(tokenizer.control, key=len, reverse=True)
        # As `json.dumps` spells them, since they are looked for in what it wrote.
        self._begins = frozenset(_json_text(token[0]) for token in self._spelled)
        self._marks = [chr(code) for code in _MARKS if chr(code) not in template.source]
        self._split = re.compile("(" + "|".join(map(re.escape, self._spelled)) + ")")
        self._fixed = {piece: self._ids(piece) for piece in self._fixed_pieces()}
        """Ids of texts that the template itself writes, whatever the messages are."""

    def __call__(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        """The ids. Raises `RequestError`, as `ChatTemplate.render` does."""
        given = json.dumps(list(messages), ensure_ascii=False, default=str)
        mark = ""
        if any(first in given for first in self._begins):
            mark = self._unused_mark(given)
            messages = [self._marked_object(message, mark) for message in messages]
        ids: list[int] = []
        for piece in self._pieces(self._template.render(messages)):
            if (id_ := self._tokenizer.control.get(piece)) is not None:
                ids.append(id_)
            elif piece:
                ids += self._fixed.get(piece) or self._ids(piece.replace(mark, ""))
        return ids

    def _pieces(self, text: str) -> list[str]:
        """Control tokens, and the texts between them."""
        return self._split.split(text) if self._spelled else [text]

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False)

    def _unused_mark(self, text: str) -> str:
        for mark in self._marks:
            if mark not in text:
                return mark
        raise RequestError("messages use every private use character", param="messages")

    def _fixed_pieces(self) -> set[str]:
        """What two prompts with different messages have in common."""
        try:
            one, other = (
                set(self._pieces(self._template.render([{"role": "user", "content": content}])))
                for content in ("a", "b")
            )
        except RequestError:  # it wants other messages than these
            return set()
        return (one & other) - {"", *self._spelled}

    def _marked_object(self, value: Mapping[str, object], mark: str) -> dict[str, object]:
        return {key: self._marked(item, mark) for key, item in value.items()}

    def _marked(self, value: object, mark: str) -> object:
        """The same value with every control token in its texts cut after the first character."""
        if isinstance(value, str):
            return self._marked_text(value, mark)
        if isinstance(value, Mapping):
            return {str(key): self._marked(item, mark) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self._marked(item, mark) for item in value]
        return value

    def _marked_text(self, text: str, mark: str) -> str:
        for token in self._spelled:
            text = text.replace(token, token[0] + mark + token[1:])
        ends = [
            length
            for token in self._spelled
            for length in range(1, len(token))
            if text.endswith(token[:length])
        ]
        for length in sorted(set(ends), reverse=True):
            at = len(text) - length + 1
            text = text[:at] + mark + text[at:]
        return text


def load_chat_template(path: Path) -> ChatTemplate:
    """From a GGUF file, or a folder with `tokenizer_config.json` or `chat_template.jinja`.

    Raises:
        ConfigError: there is no template, or it is not valid.

    """
    if not path.is_dir():
        metadata = read_gguf(path).metadata
        source, tokens = (
            metadata.get("tokenizer.chat_template"),
            metadata.get("tokenizer.ggml.tokens"),
        )
        texts = tokens if isinstance(tokens, list) else []

        def text_of(key: str) -> str:
            id_ = metadata.get(key)
            return str(texts[id_]) if isinstance(id_, int) and 0 <= id_ < len(texts) else ""

        bos, eos = text_of("tokenizer.ggml.bos_token_id"), text_of("tokenizer.ggml.eos_token_id")
    else:
        settings, alone = path / "tokenizer_config.json", path / "chat_template.jinja"
        raw = read_json(settings) if settings.is_file() else {}
        source = str(raw["chat_template"]) if isinstance(raw.get("chat_template"), str) else None
        if alone.is_file():
            source = _read_template(alone)
        bos, eos = token_text(raw.get("bos_token")), token_text(raw.get("eos_token"))
    if not isinstance(source, str):
        raise ConfigError(f"{path}: the model has no chat template")
    try:
        return ChatTemplate(source, bos, eos)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from error


def _read_template(path: Path) -> str:
    try:
        if path.stat().st_size > 4 * _TEMPLATE_CHARACTERS_MAX:
            raise ConfigError(f"{path}: longer than {_TEMPLATE_CHARACTERS_MAX} characters")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8") from error


@dataclass(slots=True)
class _Budget:
    """What one rendering may still do."""

    operations: int = _OPERATIONS_MAX
    characters: int = _CHARACTERS_MAX
    end_s: float = field(default_factory=lambda: monotonic_s() + _RENDER_MAX_S)

    def spend(self, operations: int, characters: int) -> None:
        """Raises `RequestError` when it is used up."""
        self.operations -= operations
        self.characters -= characters
        if self.operations < 0 or self.characters < 0:
            raise RequestError("chat template: it does too much", param="messages")
        if monotonic_s() > self.end_s:
            raise RequestError(f"chat template: over {_RENDER_MAX_S} s", param="messages")


_BUDGET: ContextVar[_Budget] = ContextVar("budget")
"""Of the rendering under way: renderings run on several threads, with one environment."""


@contextmanager
def _budget() -> Iterator[None]:
    before = _BUDGET.set(_Budget())
    try:
        yield
    finally:
        _BUDGET.reset(before)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox (which is extended by inheritance), with a budget for each rendering.

    Loops, `~`, calls and operators are made to pass through here, and so is every value written.
    It belongs to one template.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            finalize=self._text,
        )
        self.literal_length = 0
        """Characters of text outside of tags, of the template."""
        self.globals = {
            "range": self.globals["range"],
            "namespace": self.globals["namespace"],
            "dict": dict,
            "raise_exception": _refuse,
            _COUNTED: self._counted,
            _JOINED: self._joined,
        }
        ours = {
            "join": self._join,
            "replace": self._replace,
            "string": self._text,
            "tojson": self._tojson,
        }
        self.filters = {name: f for name, f in self.filters.items() if name in _FILTERS} | ours

    def call(self, context: Context, obj: object, *args: object, **kwargs: object) -> object:
        """Count the call, and refuse text methods that could grow without bound."""
        self._spend(characters=self.literal_length if isinstance(obj, Macro) else 0)
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str):
            if name in _GROWING_METHODS:
                raise RequestError(f"chat template: {name}() is not allowed", param="messages")
            if name == "replace" and len(args) >= 2:
                return self._replace(owner, str(args[0]), str(args[1]), *args[2:3])
            if name == "join" and args:
                return self._join(args[0], owner)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Bound what an operator can build."""
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise RequestError(f"chat template: {operator} is not allowed here", param="messages")
        sizes = [len(x) if isinstance(x, str | list | tuple) else 0 for x in (left, right)]
        length = sum(sizes)
        if operator == "*":
            numbers = [x if isinstance(x, int) else 1 for x in (left, right)]
            length = max(sizes[0] * numbers[1], sizes[1] * numbers[0])
        self._spend(characters=length)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and result.bit_length() > _NUMBER_BITS_MAX:
            raise RequestError("chat template: a number is too large", param="messages")
        return result

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _Rewrite(self).visit(super()._parse(source, name, filename))
        assert isinstance(tree, nodes.Template)
        self.literal_length = sum(len(data.data) for data in tree.find_all(nodes.TemplateData))
        return tree

    def _counted(self, items: object, literal_length: int) -> list[object]:
        """The items of a loop as a list, paid for; `literal_length` is what each round may
        write."""
        found: list[object] = list(items)  # type: ignore[call-overload]
        self._spend(len(found), len(found) * literal_length)
        return found

    def _joined(self, *parts: object) -> str:
        return "".join([self._text(part) for part in parts])

    def _spend(self, operations: int = 1, characters: int = 0) -> None:
        _check_length(characters, _CHARACTERS_MAX)
        _BUDGET.get().spend(operations, characters)

    def _text(self, value: object) -> str:
        """`str`, after counting what that will write: nested lists can be far larger than they
        look."""
        if isinstance(value, str):
            self._spend(characters=len(value))
            return value
        waiting = [value]
        while waiting:
            item = waiting.pop()
            self._spend(characters=len(item) if isinstance(item, str) else 1)
            if isinstance(item, Mapping):
                waiting += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple | set):
                waiting += item
        return str(value)

    def _join(self, items: object, separator: object = "", attribute: str | None = None) -> str:
        found = self._counted(items, len(str(separator)))
        if attribute is not None:
            found = [self.getitem(item, attribute) for item in found]
        return str(separator).join([self._text(item) for item in found])

    def _replace(self, text: object, old: str, new: str, count: object = None) -> str:
        whole = self._text(text)
        most = -1 if count is None else int(str(count))
        times = whole.count(old) if most < 0 else min(whole.count(old), most)
        self._spend(characters=len(whole) + times * len(new))
        return whole.replace(old, new, most)

    def _tojson(self, value: object, indent: int | None = None) -> str:
        """Plain JSON; Jinja's own filter writes it for HTML."""
        if indent is not None and indent > 8:
            raise RequestError(
                f"chat template: tojson with an indent of {indent}", param="messages"
            )
        self._text(value)
        return json.dumps(value, ensure_ascii=False, indent=indent)


class _Rewrite(NodeTransformer):
    """Sends loops and `~` through the budget."""

    def __init__(self, environment: _Environment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """`for x in y` → `for x in counted(y, length of the literals inside)`."""
        if node.recursive:
            raise TemplateSyntaxError("recursive loops are not allowed", node.lineno)
        length = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.iter = self._call(
            _COUNTED, [cast(nodes.Expr, node.iter), nodes.Const(length)], node.lineno
        )
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """`a ~ b` → `joined(a, b)`."""
        self.generic_visit(node)
        return self._call(_JOINED, node.nodes, node.lineno)

    def _call(self, name: str, arguments: list[nodes.Expr], line: int) -> nodes.Expr:
        call = nodes.Call(nodes.Name(name, "load"), arguments, [], None, None)
        return call.set_lineno(line).set_environment(self._environment)  # type: ignore[return-value]


def _bounded(chunks: Iterator[str]) -> Iterator[str]:
    written = 0
    for chunk in chunks:
        written += len(chunk)
        _check_length(written)
        yield chunk


def _check_length(length: int, most: int = _OUTPUT_CHARACTERS_MAX) -> None:
    if length > most:
        raise RequestError(f"chat template: {length} characters, at most {most}", param="messages")


def _refuse(message: object) -> NoReturn:
    raise RequestError(f"chat template: {str(message)[:500]}", param="messages")


def _json_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
