"""Folder sizes, circles and duplicate names of a checkout: python shape.py ROOT"""
import ast, sys, collections, os
from pathlib import Path
root = Path(sys.argv[1]).resolve()
mods = {}
for top in ("streamlog", "spark_bridge"):
    for p in (root / top).rglob("*.py"):
        parts = p.relative_to(root).with_suffix("").parts
        mods[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(p.read_text())
def typing_ids(t):
    ids = set()
    for n in ast.walk(t):
        if isinstance(n, ast.If) and isinstance(n.test, ast.Name) and n.test.id == "TYPE_CHECKING":
            ids.update(id(x) for x in ast.walk(n))
    return ids
edges = collections.defaultdict(lambda: collections.defaultdict(list))
for n, t in mods.items():
    for x in ast.walk(t):
        if isinstance(x, ast.ImportFrom) and x.module and x.module.split(".")[0] in ("streamlog", "spark_bridge"):
            for a in x.names:
                s = f"{x.module}.{a.name}"
                m = s if s in mods else x.module
                a1, b1 = n.split("."), m.split(".")
                k = 0
                while k < min(len(a1), len(b1)) and a1[k] == b1[k]: k += 1
                if k < len(a1) and k < len(b1):
                    edges[".".join(a1[:k])][(a1[k], b1[k])].append(f"{n} -> {m}.{a.name}")
for parent, es in sorted(edges.items()):
    g = collections.defaultdict(set)
    for (a, b) in es: g[a].add(b)
    # strongly connected
    idx, low, st, on, out, c = {}, {}, [], set(), [], [0]
    sys.setrecursionlimit(10000)
    def sc(v):
        idx[v] = low[v] = c[0]; c[0] += 1; st.append(v); on.add(v)
        for w in g[v]:
            if w not in idx: sc(w); low[v] = min(low[v], low[w])
            elif w in on: low[v] = min(low[v], idx[w])
        if low[v] == idx[v]:
            comp = []
            while True:
                w = st.pop(); on.discard(w); comp.append(w)
                if w == v: break
            if len(comp) > 1: out.append(comp)
    for v in list(g):
        if v not in idx: sc(v)
    for comp in out:
        print("CIRCLE in", parent, sorted(comp))
        if len(comp) <= 6 or "-v" in sys.argv:
            for (a, b), why in sorted(es.items()):
                if a in comp and b in comp: print("   ", a, "->", b, len(why), why[:4])
packs = {n.rpartition(".")[0] for n in mods}
sizes = collections.Counter(n.rpartition(".")[0] for n in mods if n not in packs)
print("over 20:", {k: v for k, v in sizes.items() if v > 20})
cl = collections.defaultdict(list)
for n, t in mods.items():
    for x in ast.walk(t):
        if isinstance(x, ast.ClassDef) and not x.name.startswith("_"): cl[x.name].append(n)
print("modules", len(mods), "classes twice", sum(len(v) > 1 for v in cl.values()))
b = collections.Counter(n.rpartition(".")[2] for n in mods)
print("basenames twice", sum(v > 1 for v in b.values()))
if "-v" in sys.argv:
    for k, v in sorted(cl.items()):
        if len(v) > 1: print(k, v)
    print({k: v for k, v in b.items() if v > 1})
