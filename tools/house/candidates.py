"""Modules with one importer and few lines: python candidates.py ROOT [LINES]"""
import ast, sys, collections, io, tokenize, re, tomllib
from pathlib import Path
root = Path(sys.argv[1]).resolve(); limit = int(sys.argv[2]) if len(sys.argv) > 2 else 130
mods, size = {}, {}
def loc(t, tree):
    L = set(); skip = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}
    for k in tokenize.generate_tokens(io.StringIO(t).readline):
        if k.type not in skip: L.update(range(k.start[0], k.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str): L -= set(range(node.lineno, node.end_lineno + 1))
        if isinstance(node, (ast.Import, ast.ImportFrom)): L -= set(range(node.lineno, node.end_lineno + 1))
    return len(L)
for top in ("streamlog", "spark_bridge"):
    for p in (root / top).rglob("*.py"):
        parts = p.relative_to(root).with_suffix("").parts
        n = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        t = p.read_text(); mods[n] = ast.parse(t); size[n] = loc(t, mods[n])
pure = set()
conf = tomllib.loads((root / "pyproject.toml").read_text())
for c in conf["tool"]["importlinter"]["contracts"]:
    if c["name"].startswith("5"): pure = set(c["source_modules"])
def is_pure(n): return any(n == p or n.startswith(p + ".") for p in pure)
imp = collections.defaultdict(set)
for n, t in mods.items():
    for x in ast.walk(t):
        if isinstance(x, ast.ImportFrom) and x.module:
            for a in x.names:
                s = f"{x.module}.{a.name}"; m = s if s in mods else x.module
                if m in mods and m != n: imp[m].add(n)
tests = collections.Counter()
for top in ("tests", "simulation", "chaos", "conformance", "benchmarks", "examples"):
    for p in (root / top).rglob("*.py"):
        for x in ast.walk(ast.parse(p.read_text())):
            if isinstance(x, ast.ImportFrom) and x.module:
                for a in x.names:
                    s = f"{x.module}.{a.name}"; tests[s if s in mods else x.module] += 1
hot = {p.relative_to(root).with_suffix("").as_posix().replace("/", ".") for p in (root/"streamlog").rglob("*.pxd")}
out = []
for n in sorted(mods):
    if len(imp[n]) == 1 and size[n] < limit and n not in hot:
        (o,) = imp[n]
        if o in hot: continue
        note = "" if n.rpartition(".")[0] == o.rpartition(".")[0] else " OTHER FOLDER"
        if is_pure(n) and not is_pure(o): note += " PURE"
        out.append((n, o, size[n], size[o], note))
for n, o, a, b, note in out: print(f"{n} ({a}) -> {o} ({b}){note}")
print(len(out), "candidates of", len(mods))
