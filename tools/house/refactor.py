"""Moves, merges and renames modules and symbols of a checkout by plan files (TOML).

    python refactor.py CHECKOUT PLAN.toml... [--check]

Plan tables:
    [move]     "streamlog.broker.gate" = "streamlog.broker.server.sasl"     several old names to one new name: merged
    [rename]   "streamlog.broker.gate:Gate" = "SaslHandshake"               module-level names, by their OLD module
    [words]    "burial" = "final_records"                                   identifiers everywhere (attributes, parameters, methods)
    [attributes] "Class:attr" = "new"                                        not supported: use words
    [packages] "streamlog.broker.server" = "Docstring of the new package."
    [heads]    "streamlog.broker.server.sasl" = "Docstring of the merged module."
"""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
import tokenize
import io
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOTS = ("streamlog", "spark_bridge", "tests", "examples", "benchmarks", "simulation", "chaos", "conformance")
TEXTS = (".md", ".toml", ".cfg", ".txt", ".sh", ".yml", ".yaml", ".pxd", ".java", ".svg")


@dataclass
class Module:
    name: str
    path: Path
    text: str
    is_package: bool
    tree: ast.Module = field(init=False)
    bindings: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)
    imported: dict[str, tuple[str, str | None]] = field(default_factory=dict)  # local -> (module, name | None)
    aliased: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text)


class Plan:
    def __init__(self, files: list[Path]) -> None:
        self.move: dict[str, str] = {}
        self.rename: dict[str, str] = {}
        self.words: dict[str, str] = {}
        self.packages: dict[str, str] = {}
        self.heads: dict[str, str] = {}
        self.drop: set[str] = set()
        self.into: dict[str, str] = {}
        self.extract: dict[str, str] = {}
        for file in files:
            data = tomllib.loads(file.read_text())
            self.drop.update(data.get("drop", {}).get("packages", []))
            for table in ("move", "rename", "words", "packages", "heads", "extract", "into"):
                mine = getattr(self, table)
                for key, value in data.get(table, {}).items():
                    if mine.get(key, value) != value:
                        sys.exit(f"{file}: {table} {key} is planned twice: {mine[key]} and {value}")
                    mine[key] = value


def scope_names(node: ast.AST) -> set[str]:
    """The names that a function or class scope binds itself."""
    names: set[str] = set()
    free: set[str] = set()
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        arguments = node.args
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
            if argument is not None:
                names.add(argument.arg)
    body = node.body if isinstance(node.body, list) else [node.body]  # type: ignore[attr-defined]

    def walk(inner: ast.AST) -> None:
        match inner:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(inner.name)
                for part in inner.decorator_list:
                    walk(part)
                return
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                for sub in ast.walk(inner):
                    if isinstance(sub, ast.NamedExpr) and isinstance(sub.target, ast.Name):
                        names.add(sub.target.id)
                return
            case ast.Name(ctx=ast.Store() | ast.Del()):
                names.add(inner.id)
            case ast.Global() | ast.Nonlocal():
                free.update(inner.names)
            case ast.Import():
                names.update(alias.asname or alias.name.split(".")[0] for alias in inner.names)
            case ast.ImportFrom():
                names.update(alias.asname or alias.name for alias in inner.names)
            case ast.ExceptHandler(name=str()):
                names.add(inner.name or "")
            case ast.MatchAs(name=str()) | ast.MatchStar(name=str()):
                names.add(inner.name or "")
            case ast.MatchMapping(rest=str()):
                names.add(inner.rest or "")
        for child in ast.iter_child_nodes(inner):
            walk(child)

    for statement in body:
        walk(statement)
    return names - free


def module_uses(tree: ast.Module, imports_of_functions: bool = True) -> list[ast.Name]:
    """The Name nodes that mean the module's own binding (or a builtin)."""
    found: list[ast.Name] = []

    def visit(node: ast.AST, bound: frozenset[str], class_bound: frozenset[str]) -> None:
        match node:
            case ast.Name():
                if node.id not in bound and node.id not in class_bound:
                    found.append(node)
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for part in node.decorator_list:
                    visit(part, bound, class_bound)
                for default in [*node.args.defaults, *node.args.kw_defaults]:
                    if default is not None:
                        visit(default, bound, class_bound)
                types = frozenset(t.name for t in getattr(node, "type_params", []))
                arguments = node.args
                for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
                    if argument is not None and argument.annotation is not None:
                        visit(argument.annotation, bound | types, class_bound)
                if node.returns is not None:
                    visit(node.returns, bound | types, class_bound)
                inside = bound | frozenset(scope_names(node)) | types
                for statement in node.body:
                    visit(statement, inside, frozenset())
                return
            case ast.Lambda():
                for default in [*node.args.defaults, *node.args.kw_defaults]:
                    if default is not None:
                        visit(default, bound, class_bound)
                visit(node.body, bound | frozenset(scope_names(node)), frozenset())
                return
            case ast.ClassDef():
                for part in [*node.decorator_list, *node.bases, *node.keywords]:
                    visit(part, bound, class_bound)
                inside = frozenset(scope_names(node))
                for statement in node.body:
                    visit(statement, bound, inside)
                return
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                inner: set[str] = set()
                for generator in node.generators:
                    for sub in ast.walk(generator.target):
                        if isinstance(sub, ast.Name):
                            inner.add(sub.id)
                visit(node.generators[0].iter, bound, class_bound)
                within = bound | frozenset(inner)
                for position, generator in enumerate(node.generators):
                    if position:
                        visit(generator.iter, within, frozenset())
                    visit(generator.target, within, frozenset())
                    for condition in generator.ifs:
                        visit(condition, within, frozenset())
                if isinstance(node, ast.DictComp):
                    visit(node.key, within, frozenset())
                    visit(node.value, within, frozenset())
                else:
                    visit(node.elt, within, frozenset())
                return
        for child in ast.iter_child_nodes(node):
            visit(child, bound, class_bound)

    for statement in tree.body:
        visit(statement, frozenset(), frozenset())
    return found


class Project:
    def __init__(self, root: Path, plan: Plan) -> None:
        for small in plan.into:
            big, seen = plan.into[small], {small}
            while big in plan.into and big not in seen:
                seen.add(big)
                big = plan.into[big]
            target = plan.move.get(big, big)
            plan.move[small] = target
            plan.heads_of = getattr(plan, "heads_of", {})
            plan.heads_of[target] = big
        self.root = root
        self.plan = plan
        self.modules: dict[str, Module] = {}
        self.problems: list[str] = []
        for top in ROOTS:
            for path in sorted((root / top).rglob("*.py")):
                parts = list(path.relative_to(root).with_suffix("").parts)
                is_package = parts[-1] == "__init__"
                name = ".".join(parts[:-1] if is_package else parts)
                self.modules[name] = Module(name, path, path.read_text(), is_package)
        self._extract()
        for module in self.modules.values():
            self._bind(module)
        for key in plan.move:
            if key not in self.modules:
                self.problems.append(f"move: there is no module {key}")
        for key in plan.rename:
            where, _, name = key.partition(":")
            if where not in self.modules or name not in self.modules[where].defined:
                self.problems.append(f"rename: there is no {key}")
        self._derive_tests()

    def _extract(self) -> None:
        """Moves top-level definitions into modules of their own, before anything else."""
        wanted: dict[tuple[str, str], list[str]] = defaultdict(list)
        for key, new in self.plan.extract.items():
            where, _, name = key.partition(":")
            if where not in self.modules:
                self.problems.append(f"extract: there is no module {where}")
                continue
            wanted[where, new].append(name)
        self.extracted: dict[tuple[str, str], str] = {}
        parts: dict[str, list[str]] = defaultdict(list)
        imports: dict[str, list[str]] = defaultdict(list)
        for (where, new), names in wanted.items():
            module = self.modules[where]
            lines = module.text.splitlines(keepends=True)
            cut: set[int] = set()
            used: set[str] = set()
            body = module.tree.body
            for index, node in enumerate(body):
                bound = self._bound_by(node)
                if not bound & set(names):
                    continue
                names = [n for n in names if n not in bound]
                first = min([node.lineno, *[d.lineno for d in getattr(node, "decorator_list", [])]])
                last = node.end_lineno or node.lineno
                after = body[index + 1] if index + 1 < len(body) else None
                if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
                    last = after.end_lineno or last
                while first > 1 and lines[first - 2].startswith("#"):
                    first -= 1
                cut.update(range(first, last + 1))
                parts[new].append("".join(lines[first - 1 : last]))
                used.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
                for symbol in bound:
                    self.extracted[where, symbol] = new
            for name in names:
                self.problems.append(f"extract: there is no {where}:{name}")
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    listed = [a for a in node.names if (a.asname or a.name.split(".")[0]) in used]
                    for alias in listed:
                        text = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
                        imports[new].append(f"from {node.module} import {text}" if isinstance(node, ast.ImportFrom) else f"import {text}")
            moved = {symbol for (m, symbol), n in self.extracted.items() if m == where and n == new}
            local = {b for n in body for b in self._bound_by(n)} - moved
            for name in sorted(used & local):
                imports[new].append(f"from {where} import {name}")
            text = "".join(line for number, line in enumerate(lines, 1) if number not in cut)
            tree = ast.parse(text)
            still = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & moved
            if still:
                future = text.find("from __future__ import annotations\n")
                at = future + len("from __future__ import annotations\n") if future >= 0 else 0
                text = text[:at] + f"\nfrom {new} import {', '.join(sorted(still))}\n" + text[at:]
            self.modules[where] = Module(where, module.path, text, module.is_package)
        for new, bodies in parts.items():
            doc = self.plan.heads.get(new, "To be written.")
            existing = self.modules.get(new)
            if existing is not None:
                future = existing.text.find("from __future__ import annotations\n") + len("from __future__ import annotations\n")
                text = existing.text[:future] + "\n" + "\n".join(dict.fromkeys(imports[new])) + "\n" + existing.text[future:].rstrip("\n") + "\n\n\n" + "\n\n".join(bodies)
                self.modules[new] = Module(new, existing.path, text, existing.is_package)
            else:
                text = f'"""{doc}"""\n\nfrom __future__ import annotations\n\n' + "\n".join(dict.fromkeys(i for i in imports[new] if "__future__" not in i)) + "\n\n\n" + "\n\n".join(bodies)
                self.modules[new] = Module(new, self.root.joinpath(*new.split(".")).with_suffix(".py"), text, False)

    def _derive_tests(self) -> None:
        taken = {self.plan.move.get(m, m) for m in self.modules}
        for name in list(self.modules):
            new = self.plan.move.get(name)
            if new is None or not name.startswith(("streamlog.", "spark_bridge.")):
                continue
            top, _, rest = name.partition(".")
            inside = rest if top == "streamlog" else f"spark_bridge.{rest}"
            package, _, last = inside.rpartition(".")
            old_test = ".".join(p for p in ("tests", package, f"test_{last}") if p)
            if old_test not in self.modules or old_test in self.plan.move:
                continue
            ntop, _, nrest = new.partition(".")
            ninside = nrest if ntop == "streamlog" else f"spark_bridge.{nrest}"
            npackage, _, nlast = ninside.rpartition(".")
            new_test = ".".join(p for p in ("tests", npackage, f"test_{nlast}") if p)
            if new_test in taken:
                new_test = ".".join(p for p in ("tests", npackage, f"test_{last}") if p)
            if new_test != old_test and new_test not in taken:
                self.plan.move[old_test] = new_test
                taken.add(new_test)

    def _bind(self, module: Module) -> None:
        class Holder:
            body = module.tree.body

        module.bindings = scope_names(Holder())  # type: ignore[arg-type]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    local = alias.asname or alias.name
                    sub = f"{node.module}.{alias.name}"
                    source = self.extracted.get((node.module, alias.name), node.module)
                    if source != node.module:
                        module.imported[local] = (source, alias.name)
                        continue
                    if alias.asname and alias.asname != alias.name:
                        module.aliased.add(local)
                    if sub in self.modules and not self._names(node.module, alias.name):
                        module.imported[local] = (sub, None)
                    else:
                        module.imported[local] = (node.module, alias.name)
        module.defined = module.bindings - set(module.imported)

    def _names(self, package: str, name: str) -> bool:
        """Whether a package's __init__ binds this name itself rather than the submodule."""
        module = self.modules.get(package)
        if module is None:
            return False
        for node in module.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
                return True
            if isinstance(node, ast.ImportFrom) and node.module != package:
                if any((a.asname or a.name) == name for a in node.names):
                    return True
        return False

    def target(self, module: str) -> str:
        return self.plan.move.get(module, module)

    def new_name(self, module: str, name: str, depth: int = 0) -> str:
        planned = self.plan.rename.get(f"{module}:{name}")
        if planned is not None:
            return planned
        here = self.modules.get(module)
        if here is None or depth > 20:
            return name
        origin = here.imported.get(name)
        if origin is not None and name not in here.aliased:
            source, symbol = origin
            if symbol is None:
                return self.target(source).rpartition(".")[2] if source in self.modules else name
            return self.new_name(source, symbol, depth + 1)
        return name

    def origin(self, module: str, name: str, depth: int = 0) -> tuple[str, str]:
        here = self.modules.get(module)
        if here is not None and depth < 20 and name in here.imported and name not in here.defined:
            source, symbol = here.imported[name]
            if symbol is not None and source in self.modules:
                return self.origin(source, symbol, depth + 1)
        return module, name

    # Rewriting of one module.

    def import_lines(self, module: Module, node: ast.ImportFrom, indent: str, comment: str) -> list[str]:
        groups: dict[str, list[str]] = defaultdict(list)
        own = self.target(module.name)
        for alias in node.names:
            source = self.extracted.get((node.module or "", alias.name), node.module or "")
            sub = f"{source}.{alias.name}"
            local = alias.asname or alias.name
            if alias.name == "*":
                groups[self.target(source)].append("*")
                continue
            is_module = sub in self.modules and not self._names(source, alias.name)
            if is_module:
                new = self.target(sub)
                if new == own:
                    continue  # merged into this file: attributes become bare names
                package, _, last = new.rpartition(".")
                text = last
                if alias.asname and alias.asname != last:
                    text = f"{last} as {alias.asname}"
                groups[package].append(text)
                continue
            if source not in self.modules:
                groups[source].append(f"{alias.name} as {alias.asname}" if alias.asname else alias.name)
                continue
            if source in self.plan.drop:
                source, base_name = self.origin(source, alias.name)
                name = self.new_name(source, base_name)
                new_module = self.target(source)
                if new_module == own and source != module.name:
                    continue
                text = f"{name} as {alias.asname}" if alias.asname and alias.asname != name else name
                groups[new_module].append(text)
                continue
            new_module = self.target(source)
            # A package's __init__ that became empty of the name: go to the definition.
            name = self.new_name(source, alias.name)
            if new_module == own and self.target(source) != source or (new_module == own and source != module.name):
                continue
            if alias.asname and alias.asname != alias.name:
                groups[new_module].append(f"{name} as {alias.asname}" if alias.asname != name else name)
            elif alias.asname == alias.name:
                groups[new_module].append(f"{name} as {name}")
            else:
                groups[new_module].append(name)
        return [f"{indent}from {package} import {', '.join(names)}{comment}" for package, names in groups.items()]

    def rewrite(self, module: Module) -> str:
        text = module.text
        lines = text.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line.encode()))
        raw = text.encode()
        edits: list[tuple[int, int, str]] = []
        own = self.target(module.name)

        def at(line: int, column: int) -> int:
            return starts[line - 1] + column

        import_spans: list[tuple[int, int]] = []
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ROOTS:
                begin, end = at(node.lineno, 0), at(node.end_lineno or 0, node.end_col_offset or 0)
                line_end = raw.find(b"\n", end)
                tail = raw[end:line_end].decode()
                first = lines[node.lineno - 1]
                indent = first[: len(first) - len(first.lstrip())]
                body = raw[begin:end].decode()
                inner = re.findall(r"#[^\n]*", body)
                comment = tail if tail.strip() else ("  " + inner[0].strip() if inner else "")
                made = self.import_lines(module, node, indent, comment)
                same = [ast.dump(s) for s in ast.parse("\n".join(m.strip() for m in made)).body] == [ast.dump(node)]
                if same:
                    pass
                elif made:
                    edits.append((begin, line_end, "\n".join(made)))
                elif self._only_statement(module.tree, node):
                    edits.append((begin, line_end, f"{indent}pass"))
                else:
                    edits.append((begin, line_end + 1, ""))
                import_spans.append((begin, line_end))
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in self.plan.move:
                        self.problems.append(f"{module.path}:{node.lineno}: `import {alias.name}` by hand")
        uses = module_uses(module.tree)
        use_ids = {id(name): name for name in uses}
        renamed_attributes: set[int] = set()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (id(node.value) in use_ids or node.value.id in module.imported):
                bound = module.imported.get(node.value.id)
                if bound is None or bound[1] is not None or bound[0] not in self.modules:
                    continue
                source = bound[0]
                new = self.new_name(source, node.attr)
                begin = at(node.value.lineno, node.value.col_offset)
                end = at(node.end_lineno or 0, node.end_col_offset or 0)
                if self.target(source) == own and source != module.name:
                    edits.append((begin, end, new))
                    renamed_attributes.add(id(node.value))
                elif new != node.attr:
                    edits.append((end - len(node.attr.encode()), end, new))
        local_imports = self._local_imports(module)
        for name in ast.walk(module.tree):
            if not isinstance(name, ast.Name) or id(name) in renamed_attributes:
                continue
            if id(name) not in use_ids and name.id not in local_imports:
                continue
            if name.id not in module.bindings and name.id not in module.imported:
                continue
            new = self.new_name(module.name, name.id)
            if new != name.id:
                begin = at(name.lineno, name.col_offset)
                edits.append((begin, begin + len(name.id.encode()), new))
        for node in module.tree.body:
            self._definition_edits(module, node, raw, at, edits)
        quoted: set[int] = set()
        for node in ast.walk(module.tree):
            holder: list[ast.AST] = []
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
                holder = [node.value]
            elif isinstance(node, ast.Subscript):
                holder = [node.slice]
            elif isinstance(node, ast.AnnAssign) and node.value is not None and ast.unparse(node.annotation).endswith("TypeAlias"):
                holder = [node.value]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast" and node.args:
                holder = [node.args[0]]
            for part in holder:
                for inner in ast.walk(part):
                    if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and id(inner) not in quoted:
                        quoted.add(id(inner))
                        if not inner.value.isidentifier() and isinstance(node, ast.Subscript | ast.AnnAssign) and re.fullmatch(r"[\w\[\], .|]+", inner.value):
                            known = module.bindings | set(module.imported)
                            changed = re.sub(r"(?<![.\w])[A-Za-z_]\w*", lambda m: self.new_name(module.name, m.group()) if m.group() in known else m.group(), inner.value)
                            if changed != inner.value:
                                begin = at(inner.lineno, inner.col_offset)
                                end = at(inner.end_lineno or 0, inner.end_col_offset or 0)
                                edits.append((begin, end, f'"{changed}"'))
                        if inner.value.isidentifier() and (inner.value in module.bindings or inner.value in module.imported):
                            new = self.new_name(module.name, inner.value)
                            if new != inner.value:
                                begin = at(inner.lineno, inner.col_offset)
                                edits.append((begin, begin + len(inner.value) + 2, f'"{new}"'))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Global):
                for given in node.names:
                    new = self.new_name(module.name, given)
                    if new != given:
                        begin = at(node.lineno, node.col_offset)
                        end = at(node.end_lineno or 0, node.end_col_offset or 0)
                        edits.append((begin, end, re.sub(rf"\b{given}\b", new, raw[begin:end].decode())))
        edits = sorted(set(edits))
        out: list[bytes] = []
        last = 0
        for begin, end, new in edits:
            if begin < last:
                self.problems.append(f"{module.path}: overlapping edits near byte {begin}: {new!r}")
                continue
            out.append(raw[last:begin])
            out.append(new.encode())
            last = end
        out.append(raw[last:])
        return b"".join(out).decode()

    def _local_imports(self, module: Module) -> set[str]:
        names: set[str] = set()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.ImportFrom):
                        names.update(alias.name for alias in inner.names if not alias.asname)
        return names

    def _only_statement(self, tree: ast.Module, target: ast.AST) -> bool:
        for node in ast.walk(tree):
            for block in ("body", "orelse", "finalbody"):
                statements = getattr(node, block, None)
                if isinstance(statements, list) and target in statements:
                    return len(statements) == 1 and not isinstance(node, ast.Module)
        return False

    def _definition_edits(self, module, node, raw, at, edits) -> None:  # noqa: ANN001
        if isinstance(node, ast.If | ast.Try):
            for inner in [*node.body, *node.orelse]:
                self._definition_edits(module, inner, raw, at, edits)
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            new = self.new_name(module.name, node.name) if node.name in module.defined else node.name
            if new != node.name:
                begin = at(node.lineno, node.col_offset)
                pattern = re.compile(rb"(?:class|def)\s+(" + node.name.encode() + rb")\b")
                found = pattern.search(raw, begin)
                if found:
                    edits.append((found.start(1), found.end(1), new))

    # Texts.

    def text_rules(self) -> list[tuple[re.Pattern[str], object]]:
        dotted: dict[str, str] = {}
        slashed: dict[str, str] = {}
        partial: dict[str, set[str]] = defaultdict(set)
        for old, module in self.modules.items():
            new = self.target(old)
            partial_old = old.split(".")
            for cut in range(1, len(partial_old) - 1):
                suffix = "/".join(partial_old[cut:])
                partial[suffix].add(old)
            if new != old:
                dotted[old] = new
                slashed[old.replace(".", "/")] = new.replace(".", "/")
        for suffix, olds in partial.items():
            if len(olds) == 1:
                (old,) = olds
                new = self.target(old)
                if new != old and not old.startswith("tests."):
                    drop = len(old.split(".")) - len(suffix.split("/"))
                    slashed[suffix] = "/".join(new.split(".")[drop:]) if len(new.split(".")) > drop else new.rpartition(".")[2]
        for key, new in self.plan.rename.items():
            module, _, name = key.partition(":")
            dotted[f"{module}.{name}"] = f"{self.target(module)}.{new}"
        rules: list[tuple[re.Pattern[str], object]] = []
        if dotted:
            keys = "|".join(re.escape(k) for k in sorted(dotted, key=len, reverse=True))
            rules.append((re.compile(rf"(?<![\w./])({keys})(?![\w])"), lambda m: dotted[m.group(1)]))
        if slashed:
            keys = "|".join(re.escape(k) for k in sorted(slashed, key=len, reverse=True))
            rules.append((re.compile(rf"(?<![\w.-])((?:\./)?)({keys})(?![\w/-])"), lambda m: m.group(1) + slashed[m.group(2)]))
        basenames: dict[str, set[str]] = defaultdict(set)
        for name in self.modules:
            if not name.startswith("tests."):
                basenames[name.rpartition(".")[2]].add(name)
        ticks: dict[str, str] = {}
        for base, names in basenames.items():
            if len(names) == 1:
                (old,) = names
                new_base = self.target(old).rpartition(".")[2]
                if new_base != base and "_" in base:
                    ticks[base] = new_base
        defined: dict[str, set[str]] = defaultdict(set)
        for name, module in self.modules.items():
            for symbol in module.defined:
                defined[symbol].add(name)
        for key, new in self.plan.rename.items():
            module, _, name = key.partition(":")
            if len(defined[name]) == 1 and not name.startswith("_"):
                ticks[name] = new
        ticks.update(self.plan.words)
        if ticks:
            keys = "|".join(re.escape(k) for k in sorted(ticks, key=len, reverse=True))
            rules.append((re.compile(rf"(?<=`)({keys})(?=[`.(\[])"), lambda m: ticks[m.group(1)]))
        return rules

    def words(self, text: str) -> str:
        if not self.plan.words:
            return text
        out: list[str] = []
        edits: list[tuple[int, int, str]] = []
        lines = text.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME and token.string in self.plan.words:
                begin = starts[token.start[0] - 1] + token.start[1]
                edits.append((begin, begin + len(token.string), self.plan.words[token.string]))
        last = 0
        for begin, end, new in edits:
            out.append(text[last:begin])
            out.append(new)
            last = end
        out.append(text[last:])
        return "".join(out)

    @staticmethod
    def _prose(text: str, change) -> str:  # noqa: ANN001
        """Applies the text rules to comments and strings alone."""
        kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
        lines = text.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        out: list[str] = []
        last = 0
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in kinds:
                begin = starts[token.start[0] - 1] + token.start[1]
                end = starts[token.end[0] - 1] + token.end[1]
                if begin < last:
                    continue
                out.append(text[last:begin])
                out.append(change(text[begin:end]))
                last = end
        out.append(text[last:])
        return "".join(out)

    # Merging.

    def merge(self, target: str, parts: list[tuple[Module, str]]) -> str:
        heads = self.plan.heads.get(target)
        ordered = self._order(parts)
        runtime: list[str] = []
        typing_only: list[str] = []
        bodies: list[str] = []
        doc: str | None = None
        seen: dict[str, str] = {}
        for module, text in ordered:
            tree = ast.parse(text)
            lines = text.splitlines(keepends=True)
            drop: set[int] = set()
            for index, node in enumerate(tree.body):
                span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                if index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                    source = "".join(lines[node.lineno - 1 : node.end_lineno])
                    if doc is None or module.name == getattr(self.plan, "heads_of", {}).get(target, target):
                        doc = source
                    drop.update(span)
                elif isinstance(node, ast.Import | ast.ImportFrom):
                    runtime.append("".join(lines[node.lineno - 1 : node.end_lineno]))
                    drop.update(span)
                elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                    for inner in node.body:
                        typing_only.append("".join(lines[inner.lineno - 1 : inner.end_lineno]))
                    drop.update(span)
                else:
                    source = "".join(lines[node.lineno - 1 : node.end_lineno]).strip()
                    for bound in self._bound_by(node):
                        if seen.get(bound, source) != source:
                            self.problems.append(f"merge into {target}: `{bound}` is defined twice ({module.name})")
                        elif bound in seen and isinstance(node, ast.Assign | ast.AnnAssign):
                            drop.update(span)
                        seen[bound] = source
            body = "".join(line for number, line in enumerate(lines, 1) if number not in drop)
            bodies.append(body.strip("\n"))
        runtime_set = list(dict.fromkeys(runtime))
        # Type-checking imports of names that are imported at run time, or defined here, go.
        kept: list[str] = []
        names_at_run_time = {n for line in runtime_set for n in self._names_of(line)} | set(seen)
        for line in dict.fromkeys(typing_only):
            node = ast.parse(line.strip()).body[0]
            if isinstance(node, ast.ImportFrom):
                names = [a for a in node.names if (a.asname or a.name) not in names_at_run_time]
                if names:
                    listed = ", ".join(f"{a.name} as {a.asname}" if a.asname else a.name for a in names)
                    kept.append(f"    from {node.module} import {listed}\n")
            else:
                kept.append(line if line.startswith("    ") else "    " + line)
        future = "from __future__ import annotations\n"
        runtime_set = [line for line in runtime_set if line.strip() != future.strip()]
        text = (f'"""{heads}"""\n' if heads else doc or "") + "\n" + future + "\n" + "".join(runtime_set)
        if kept:
            text += "\nif TYPE_CHECKING:\n" + "".join(kept)
        return text + "\n\n" + "\n\n\n".join(bodies) + "\n"

    @staticmethod
    def _names_of(line: str) -> set[str]:
        node = ast.parse(line.strip()).body[0]
        if isinstance(node, ast.Import | ast.ImportFrom):
            return {a.asname or a.name for a in node.names}
        return set()

    @staticmethod
    def _bound_by(node: ast.stmt) -> set[str]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return {node.name}
            case ast.Assign():
                return {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            case ast.AnnAssign(target=ast.Name()):
                return {node.target.id}  # type: ignore[union-attr]
        return set()

    def _order(self, parts: list[tuple[Module, str]]) -> list[tuple[Module, str]]:
        names = [module.name for module, _ in parts]
        needs: dict[str, set[str]] = {}
        for module, _ in parts:
            wanted: set[str] = set()
            for node in module.tree.body:
                if isinstance(node, ast.ImportFrom) and node.module:
                    if node.module in names:
                        wanted.add(node.module)
                    wanted.update(f"{node.module}.{a.name}" for a in node.names if f"{node.module}.{a.name}" in names)
            needs[module.name] = wanted - {module.name}
        done: list[str] = []
        left = list(names)
        while left:
            for name in left:
                if needs[name] <= set(done):
                    done.append(name)
                    left.remove(name)
                    break
            else:
                self.problems.append(f"merge: circle among {left}")
                done.extend(left)
                break
        by_name = {module.name: (module, text) for module, text in parts}
        return [by_name[name] for name in done]

    # All of it.

    def run(self, check: bool) -> None:
        results: dict[str, list[tuple[Module, str]]] = defaultdict(list)
        for module in self.modules.values():
            if module.name in self.plan.drop:
                continue
            results[self.target(module.name)].append((module, self.rewrite(module)))
        rules = self.text_rules()

        def texts(text: str) -> str:
            for pattern, replacement in rules:
                text = pattern.sub(replacement, text)  # type: ignore[arg-type]
            return text

        files: dict[Path, str] = {}
        for target, parts in results.items():
            try:
                text = parts[0][1] if len(parts) == 1 else self.merge(target, parts)
            except SyntaxError as error:
                self.problems.append(f"{target}: {error}")
                continue
            text = self._prose(self.words(text), texts)
            base = self.root.joinpath(*target.split("."))
            is_package = any(other.startswith(target + ".") for other in results) or any(m.is_package for m, _ in parts) and target in self.modules and self.modules[target].is_package and any(o.startswith(target + ".") for o in results)
            files[base / "__init__.py" if is_package else base.with_suffix(".py")] = text
            try:
                ast.parse(text)
            except SyntaxError as error:
                self.problems.append(f"{target}: {error}")
        for package, doc in self.plan.packages.items():
            path = self.root.joinpath(*package.split("."), "__init__.py")
            files.setdefault(path, f'"""{doc}"""\n')
        needed = {parent for path in files for parent in path.parents if parent != self.root and self.root in parent.parents}
        for folder in needed:
            top = folder.relative_to(self.root).parts[0]
            if top in ("streamlog", "spark_bridge") and folder / "__init__.py" not in files:
                self.problems.append(f"package {folder.relative_to(self.root)} has no docstring in [packages]")
        self._collisions(results)
        for problem in dict.fromkeys(self.problems):
            print("PROBLEM", problem)
        count = len([f for f in files if f.relative_to(self.root).parts[0] in ("streamlog", "spark_bridge")])
        print(f"{count} files in the package after; {len(self.problems)} problems")
        if check:
            return
        old_paths = {module.path for module in self.modules.values() if module.path.exists()}
        moved_pxd: dict[Path, Path] = {}
        for module in self.modules.values():
            pxd = module.path.with_suffix(".pxd")
            if pxd.exists():
                moved_pxd[pxd] = self.root.joinpath(*self.target(module.name).split(".")).with_suffix(".pxd")
        for path in old_paths - set(files):
            path.unlink()
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
        for old, new in moved_pxd.items():
            if old != new:
                new.parent.mkdir(parents=True, exist_ok=True)
                old.rename(new)
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=self.root, capture_output=True, text=True, check=True).stdout.split("\n")
        for entry in listed:
            path = self.root / entry
            if entry and path.is_file() and (path.suffix in TEXTS or path.name in ("Makefile", "setup.py", "CHANGELOG.md")) and path not in files:
                old = path.read_text()
                new = texts(old)
                if path.suffix == ".pxd":
                    new = self._pxd(new)
                if new != old:
                    path.write_text(new)
        for folder in sorted({p.parent for p in old_paths}, reverse=True):
            if folder.is_dir():
                rest = [p for p in folder.iterdir() if p.name != "__pycache__" and p.suffix != ".so"]
                if not rest:
                    subprocess.run(["rm", "-rf", str(folder)], check=True)

    def _pxd(self, text: str) -> str:
        def line(match: re.Match[str]) -> str:
            package, names = match.group(1), match.group(2)
            groups: dict[str, list[str]] = defaultdict(list)
            for entry in names.split(","):
                name, _, alias = entry.strip().partition(" as ")
                sub = f"{package}.{name}"
                if sub in self.modules:
                    new_package, _, last = self.target(sub).rpartition(".")
                    groups[new_package].append(f"{last} as {alias or name}" if (alias or name) != last else last)
                else:
                    groups[self.target(package)].append(entry.strip())
            return "\n".join(f"from {p} cimport {', '.join(n)}" for p, n in groups.items())

        return re.sub(r"^from (streamlog[\w.]*) cimport ([^\n]+)$", line, text, flags=re.M)

    def _collisions(self, results: dict[str, list[tuple[Module, str]]]) -> None:
        for target in results:
            if not target.startswith(("streamlog", "spark_bridge")):
                continue
            for module, _ in results[target]:
                bound: dict[str, str] = {}
                for name in module.bindings:
                    new = self.new_name(module.name, name)
                    if new in bound and bound[new] != name:
                        self.problems.append(f"{module.name}: {name} and {bound[new]} both become {new}")
                    bound[new] = name


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    project = Project(Path(arguments[0]).resolve(), Plan([Path(a) for a in arguments[1:]]))
    project.run(check="--check" in sys.argv)
